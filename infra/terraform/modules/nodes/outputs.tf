output "machines" {
  description = "Machine to instance, private name, zone and data volume."
  value = {
    for m, machine in local.machines : m => {
      instance_id = aws_instance.node[m].id
      host        = machine.host
      zone        = machine.zone
      volume_id   = aws_ebs_volume.data[m].id
    }
  }
}

output "instance_ids" {
  description = "Machine to instance."
  value       = { for m, instance in aws_instance.node : m => instance.id }
}

output "servers" {
  description = "host:port of every node."
  value       = flatten([for machine in local.machines : [for node in machine.nodes : "${machine.host}:${node.port}"]])
}

output "port" {
  description = "Port of each machine's first node."
  value       = local.port
}

output "http_port" {
  description = "Port of the metrics of each machine's first node."
  value       = local.http_port
}

output "zone_id" {
  description = "The private zone, for more names."
  value       = aws_route53_zone.private.zone_id
}

output "domain" {
  description = "Name of the private zone."
  value       = local.domain
}

output "security_group_id" {
  description = "Security group of the machines."
  value       = aws_security_group.node.id
}

output "user_data" {
  description = "The first-start document of each machine; marked sensitive for its length alone."
  sensitive   = true
  value       = local.user_data
}
