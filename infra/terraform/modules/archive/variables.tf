variable "bucket" {
  description = "Name of the bucket; names are shared by all of AWS."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "A bucket's name has 3 to 63 lower-case letters, digits and dashes."
  }
}

variable "partition" {
  description = "AWS partition of the ARNs: aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"

  validation {
    condition     = contains(["aws", "aws-cn", "aws-us-gov"], var.partition)
    error_message = "aws, aws-cn or aws-us-gov."
  }
}

variable "kms" {
  description = "Encrypt with a KMS key of its own rather than with S3's."
  type        = bool
  default     = false
}

variable "abort_uploads_days" {
  description = "Days after which unfinished uploads are aborted: those that a killed node left."
  type        = number
  default     = 7

  validation {
    condition     = var.abort_uploads_days >= 1 && floor(var.abort_uploads_days) == var.abort_uploads_days
    error_message = "A whole number of days, 1 at least."
  }
}

variable "noncurrent_days" {
  description = "Days that deleted and overwritten objects can still be brought back."
  type        = number
  default     = 30

  validation {
    condition     = var.noncurrent_days >= 1 && floor(var.noncurrent_days) == var.noncurrent_days
    error_message = "A whole number of days, 1 at least."
  }
}
