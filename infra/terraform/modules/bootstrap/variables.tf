variable "name" {
  description = "What the load balancer is named after."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "A name begins with a letter, has lower-case letters, digits and dashes, and 2 to 20 characters."
  }
}

variable "vpc_id" {
  description = "The network."
  type        = string
}

variable "subnets" {
  description = "Zone to subnet; the load balancer has an address in each."
  type        = map(string)
}

variable "instance_ids" {
  description = "Machine to instance."
  type        = map(string)
}

variable "port" {
  description = "Port of each machine's first node, and of the load balancer."
  type        = number

  validation {
    condition     = var.port >= 1 && var.port <= 65535 && floor(var.port) == var.port
    error_message = "A whole number of 1 to 65,535."
  }
}

variable "client_cidrs" {
  description = "Addresses that clients come from."
  type        = list(string)

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && can(regex("^[0-9.]+/([89]|[12][0-9]|3[0-2])$", cidr))])
    error_message = "IPv4 networks of /8 to /32, and so not all of the Internet."
  }
}

variable "node_security_group_id" {
  description = "Security group of the machines, which lets the load balancer in."
  type        = string
}

variable "zone_id" {
  description = "The private zone."
  type        = string
}

variable "domain" {
  description = "Name of the private zone."
  type        = string
}

variable "deletion_protection" {
  description = "Refuse to delete the load balancer until this is taken back."
  type        = bool
  default     = true
}
