variable "name" {
  description = "What the load balancer is named after."
  type        = string
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
}

variable "client_cidrs" {
  description = "Addresses that clients come from."
  type        = list(string)
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
