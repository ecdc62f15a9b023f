variable "name" {
  description = "What alarms are named after; the tag Cluster of the machines."
  type        = string
}

variable "region" {
  description = "Region of the machines."
  type        = string
}

variable "partition" {
  description = "AWS partition of the ARNs."
  type        = string
  default     = "aws"
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
}

variable "processes" {
  description = "Nodes on each machine, with one port each."
  type        = number
  default     = 1
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
