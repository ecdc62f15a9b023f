variable "name" {
  description = "What everything is named after: lower-case letters, digits and dashes, 20 characters at most."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "A name begins with a letter, has lower-case letters, digits and dashes, and 2 to 20 characters."
  }
}

variable "region" {
  description = "Region of the network, for the names of AWS's services in it."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region looks like eu-central-1."
  }
}

variable "zones" {
  description = "Availability zones, one subnet in each. Their order is the order of machines: add new ones at the end."
  type        = list(string)

  validation {
    condition     = length(var.zones) >= 1 && length(var.zones) <= 6 && length(distinct(var.zones)) == length(var.zones)
    error_message = "One to six different zones."
  }
}

variable "cidr" {
  description = "Addresses of the network; each zone gets a sixteenth of them."
  type        = string
  default     = "10.20.0.0/16"

  validation {
    condition     = can(cidrsubnet(var.cidr, 4, 15)) && can(regex("^[0-9.]+/(1[6-9]|2[0-4])$", var.cidr))
    error_message = "An IPv4 network of /16 to /24, as 10.20.0.0/16."
  }
}

variable "archive_arn" {
  description = "ARN of the archive's bucket: the only one that the way to S3 leads to."
  type        = string

  validation {
    condition     = can(regex("^arn:aws(-[a-z]+)*:s3:::[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.archive_arn))
    error_message = "A bucket's ARN looks like arn:aws:s3:::example-firn-archive."
  }
}

variable "secret_arns" {
  description = "ARNs of the secrets and parameters that machines read: the only ones that the way there leads to."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.secret_arns : can(regex("^arn:aws[a-z-]*:(secretsmanager|ssm):${var.region}:[0-9]{12}:(secret:|parameter/)[A-Za-z0-9_/+=.@-]+$", arn))])
    error_message = "Whole ARNs, of secrets in the network's region."
  }
}
