variable "name" {
  description = "What the role is named after."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "A name begins with a letter, has lower-case letters, digits and dashes, and 2 to 20 characters."
  }
}

variable "archive_arn" {
  description = "ARN of the archive's bucket."
  type        = string

  validation {
    condition     = can(regex("^arn:aws(-[a-z]+)*:s3:::[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.archive_arn))
    error_message = "A bucket's ARN looks like arn:aws:s3:::example-firn-archive."
  }
}

variable "prefix" {
  description = "Where in the bucket the archive lies, without slashes at its ends."
  type        = string
  default     = "firn"

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", var.prefix))
    error_message = "Letters, digits, dots, dashes and underscores, with slashes between them alone."
  }
}

variable "packages_prefix" {
  description = "Where in the bucket the packages lie that machines install: outside of the archive, read by machines and written by people."
  type        = string
  default     = "packages"

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", var.packages_prefix))
    error_message = "Letters, digits, dots, dashes and underscores, with slashes between them alone."
  }
  validation {
    condition     = !startswith("${var.packages_prefix}/", "${var.prefix}/") && !startswith("${var.prefix}/", "${var.packages_prefix}/")
    error_message = "Packages lie beside the archive: in it machines could write what machines install."
  }
}

variable "formed_prefix" {
  description = "Where in the bucket it is kept which controllers have been formed: outside of archive and packages; null where a node is alone."
  type        = string
  default     = null

  validation {
    condition     = var.formed_prefix == null ? true : can(regex("^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", var.formed_prefix))
    error_message = "Letters, digits, dots, dashes and underscores, with slashes between them alone."
  }
  validation {
    condition = var.formed_prefix == null ? true : !anytrue([for prefix in [var.prefix, var.packages_prefix] :
      startswith("${var.formed_prefix}/", "${prefix}/") || startswith("${prefix}/", "${var.formed_prefix}/")
    ])
    error_message = "It lies beside archive and packages: in the archive machines could delete it."
  }
}

variable "kms_key_arn" {
  description = "The key that objects are encrypted with; null where it is S3's own."
  type        = string
  default     = null
}

variable "kms" {
  description = "Whether there is such a key; said apart, since its ARN is not known before it is there."
  type        = bool
  default     = false
}

variable "secret_arns" {
  description = "ARNs of the secrets and parameters that machines may read."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.secret_arns : can(regex("^arn:aws[a-z-]*:(secretsmanager|ssm):[a-z0-9-]+:[0-9]{12}:(secret:|parameter/)[A-Za-z0-9_/+=.@-]+$", arn))])
    error_message = "Whole ARNs: a pattern would let machines read other secrets, too."
  }
}

variable "secret_key_arns" {
  description = "ARNs of the keys that secrets are encrypted with, where these are not the account's own."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.secret_key_arns : can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", arn))])
    error_message = "Keys by their ARNs, as arn:aws:kms:eu-central-1:123456789012:key/…"
  }
}
