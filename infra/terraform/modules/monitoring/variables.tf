variable "name" {
  description = "What alarms are named after; the tag Cluster of the machines."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "A name begins with a letter, has lower-case letters, digits and dashes, and 2 to 20 characters."
  }
}

variable "region" {
  description = "Region of the machines."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region looks like eu-central-1."
  }
}

variable "partition" {
  description = "AWS partition of the ARNs."
  type        = string
  default     = "aws"

  validation {
    condition     = contains(["aws", "aws-cn", "aws-us-gov"], var.partition)
    error_message = "aws, aws-cn or aws-us-gov."
  }
}

variable "instance_ids" {
  description = "Machine to instance."
  type        = map(string)
}

variable "load_balancer" {
  description = "The load balancer's name in CloudWatch."
  type        = string
}

variable "target_group" {
  description = "The target group's name in CloudWatch."
  type        = string
}

variable "http_port" {
  description = "Port of the metrics of each machine's first node."
  type        = number

  validation {
    condition     = var.http_port >= 1 && var.http_port <= 65535 && floor(var.http_port) == var.http_port
    error_message = "A whole number of 1 to 65,535."
  }
}

variable "processes" {
  description = "Nodes on each machine, with one port each."
  type        = number
  default     = 1

  validation {
    condition     = var.processes >= 1 && var.processes <= 64 && floor(var.processes) == var.processes
    error_message = "A whole number of 1 to 64."
  }
}

variable "scrape" {
  description = "How Prometheus asks nodes that have secrets: a name that their certificate has, and the file of the token on its machine, null without one. null: over HTTP."
  type        = object({ server_name = string, token_file = optional(string) })
  default     = null
}

variable "alarm_actions" {
  description = "ARNs that are told of alarms and of their end, as an SNS topic's."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.alarm_actions : startswith(arn, "arn:")])
    error_message = "ARNs begin with arn:."
  }
}
