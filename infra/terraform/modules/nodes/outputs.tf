output "machines" {
  description = "Machine to instance, private name, zone, role, nodes and data volume."
  value = {
    for m, machine in local.machines : m => {
      role        = local.in_cluster ? machine.role : "alone"
      nodes       = [for node in machine.nodes : { id = node.id, port = node.port }]
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

output "broker_instance_ids" {
  description = "Machine to instance, of those that serve clients."
  value       = { for m in keys(local.broker_machines) : m => aws_instance.node[m].id }
}

output "servers" {
  description = "host:port of every node that serves clients."
  value       = flatten([for machine in local.broker_machines : [for node in machine.nodes : "${machine.host}:${node.port}"]])
}

output "controllers" {
  description = "host:port of every controller; none where a node is alone."
  value       = [for voter in local.voters : "${voter.host}:${voter.port}"]
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

output "client_config" {
  description = "The file on every machine that its commands of the user admin connect by; null without secrets."
  value       = var.secrets == null ? null : "/etc/firn/secrets/client.properties"
}

output "user_data" {
  description = "The first-start document of each machine; marked sensitive for its length alone."
  sensitive   = true
  value       = local.user_data
}
