variable "name" {
  description = "What everything is named after: lower-case letters, digits and dashes, 20 characters at most."
  type        = string
  default     = "firn-small"
}

variable "region" {
  description = "AWS region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region looks like eu-central-1."
  }
}

variable "zones" {
  description = "Availability zones of the region; the machine is in the first: never change their order."
  type        = list(string)

  validation {
    condition     = length(var.zones) >= 1 && alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "Zones of the region, as eu-central-1a."
  }
}

variable "cidr" {
  description = "Addresses of the network."
  type        = string
  default     = "10.20.0.0/16"
}

variable "bucket" {
  description = "Name of the archive's bucket; names are shared by all of AWS."
  type        = string
}

variable "client_cidrs" {
  description = "Addresses that clients come from: of networks peered with this one; null for this network alone."
  type        = list(string)
  default     = null
}

variable "metrics_cidrs" {
  description = "Addresses that Prometheus scrapes from."
  type        = list(string)
  default     = []
}

variable "image_id" {
  description = "Machine image: Debian 12 or 13, or Ubuntu 24.04. docs/deploy.md says how to find one."
  type        = string
}

variable "root_device" {
  description = "The image's name of its root disk: /dev/xvda for Debian, /dev/sda1 for Ubuntu."
  type        = string
  default     = "/dev/xvda"
}

variable "instance_type" {
  description = "Type of the machines."
  type        = string
  default     = "t3.medium"
}

variable "key_name" {
  description = "EC2 key pair for SSH; null for none."
  type        = string
  default     = null
}

variable "ssh_user" {
  description = "The image's user: admin for Debian, ubuntu for Ubuntu."
  type        = string
  default     = "admin"

  validation {
    condition     = can(regex("^[a-z_][a-z0-9_-]*$", var.ssh_user))
    error_message = "A user's name, as admin."
  }
}

variable "volume" {
  description = "Data volume of each machine: GiB, operations and MiB per second, a KMS key other than the account's, and whether a snapshot is made when terraform deletes it."
  type = object({
    size       = number
    iops       = optional(number, 3000)
    throughput = optional(number, 125)
    kms_key_id = optional(string)
    snapshot   = optional(bool, true)
  })
  default = { size = 50 }
}

variable "package" {
  description = "What machines install: a tar of wheels (`make package`) under packages/ in the bucket, as s3://bucket/packages/…, and its SHA-256."
  type = object({
    url    = string
    sha256 = string
  })

  validation {
    condition     = startswith(var.package.url, "s3://${var.bucket}/packages/")
    error_message = "s3://${var.bucket}/packages/…: machines reach the bucket and nothing else, and may read nothing else there."
  }
}

variable "properties" {
  description = "More of server.properties."
  type        = map(string)
  default     = {}
}

variable "secrets" {
  description = "ARNs of what the node is told in secret, in Secrets Manager or SSM (docs/security.md); null for no login, no encryption and no access rules."
  type = object({
    node        = string
    ca          = string
    admin       = string
    super_users = string
    metrics     = optional(string)
  })
  default = null
}

variable "secret_key_arns" {
  description = "ARNs of the keys of KMS that the secrets are encrypted with, where these are not the account's own."
  type        = list(string)
  default     = []
}
