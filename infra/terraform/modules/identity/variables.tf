variable "name" {
  description = "What the role is named after."
  type        = string
}

variable "archive_arn" {
  description = "ARN of the archive's bucket."
  type        = string
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
