output "vpc_id" {
  description = "The network."
  value       = aws_vpc.this.id
}

output "cidr" {
  description = "Addresses of the network."
  value       = var.cidr
}

output "subnets" {
  description = "Zone to subnet."
  value       = { for zone, subnet in aws_subnet.zone : zone => subnet.id }
}

output "connect_security_group_id" {
  description = "Security group of the instance connect endpoint, for machines that let it in."
  value       = aws_security_group.connect.id
}
