variable "name" {
  description = "What everything is named after: lower-case letters, digits and dashes, 20 characters at most."
  type        = string
  default     = "firn"
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
  description = "Three availability zones of the region. Machines 1 and c1 are in the first, 2 and c2 in the second, and so on around: never change their order."
  type        = list(string)

  validation {
    condition     = length(var.zones) == 3 && length(distinct(var.zones)) == 3 && alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "Three different zones of the region, as eu-central-1a."
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

variable "cluster_id" {
  description = "The cluster's id: what `firn random-uuid` prints, once. It never changes."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_][A-Za-z0-9_-]{20}[AQgw]$", var.cluster_id))
    error_message = "22 characters as `firn random-uuid` prints them."
  }
}

variable "brokers" {
  description = "Number of machines that hold partitions; beside them there are always three controllers. More may be added at any time."
  type        = number
  default     = 3

  validation {
    condition     = var.brokers >= 3
    error_message = "Three or more: a partition has three replicas, each in a zone of its own."
  }
}

variable "processes" {
  description = "Nodes on each broker's machine, one for each core, of one service (firn.processes). More may be added at any time; before there are fewer, take from the brokers that go what they hold."
  type        = number
  default     = 1
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
  description = "Type of the brokers' machines."
  type        = string
  default     = "m7i.large"
}

variable "controller_instance_type" {
  description = "Type of the controllers' machines, which hold metadata alone."
  type        = string
  default     = "t3.small"
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
  description = "Data volume of each broker's machine: GiB, operations and MiB per second, a KMS key other than the account's, and whether a snapshot is made when terraform deletes it."
  type = object({
    size       = number
    iops       = optional(number, 6000)
    throughput = optional(number, 500)
    kms_key_id = optional(string)
    snapshot   = optional(bool, true)
  })
  default = { size = 500 }
}

variable "controller_volume" {
  description = "Data volume of each controller's machine, likewise."
  type = object({
    size       = number
    iops       = optional(number, 3000)
    throughput = optional(number, 125)
    kms_key_id = optional(string)
    snapshot   = optional(bool, true)
  })
  default = { size = 16 }
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

variable "alarm_actions" {
  description = "ARNs that are told of alarms and of their end, as an SNS topic's."
  type        = list(string)
  default     = []
}

variable "deletion_protection" {
  description = "Refuse to delete the load balancer until this is taken back."
  type        = bool
  default     = true
}

variable "secrets" {
  description = "ARNs of what nodes are told in secret, in Secrets Manager or SSM (docs/security.md): the nodes' key with the chain of its certificate, the certificates that are trusted, the password of the user admin, super.users. Never their values."
  type = object({
    node        = string
    ca          = string
    admin       = string
    super_users = string
    metrics     = optional(string)
  })
  default = null

  validation {
    condition     = var.plaintext == (var.secrets == null)
    error_message = "The ARNs of four secrets, or plaintext = true: whoever reaches a port then reads and writes."
  }
}

variable "plaintext" {
  description = "No login, no encryption and no access rules: for a network in which everybody may do everything. It cannot be changed by itself once the cluster has been formed (docs/security.md)."
  type        = bool
  default     = false
}

variable "secret_key_arns" {
  description = "ARNs of the keys of KMS that the secrets are encrypted with, where these are not the account's own."
  type        = list(string)
  default     = []
}
