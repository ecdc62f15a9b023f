output "bootstrap_servers" {
  description = "For bootstrap.servers of clients."
  value       = module.nodes.servers[0]
}

output "bucket" {
  description = "The archive's bucket; the archive lies under firn/ in it, packages under packages/."
  value       = module.archive.bucket
}

output "machines" {
  description = "Machine to instance, private name, zone and data volume."
  value       = module.nodes.machines
}

output "tunnel_command" {
  description = "Brings machine 1's metrics to 127.0.0.1:9464 and its broker to 127.0.0.1:9092, for `firn top` and the console."
  value = join(" ", [
    "ssh -N -L 9464:127.0.0.1:9464 -L 9092:127.0.0.1:9092",
    "-o ProxyCommand='aws ec2-instance-connect open-tunnel --region ${var.region} --instance-id ${module.nodes.instance_ids["1"]}'",
    "${var.ssh_user}@${module.nodes.instance_ids["1"]}",
  ])
}

output "console_command" {
  description = "Looks at the cluster in a browser of this computer, through that tunnel."
  value       = "firn console --bootstrap 127.0.0.1:9092 --metrics http${var.secrets == null ? "" : "s"}://127.0.0.1:9464 --url s3://${module.archive.bucket}/firn --region ${var.region}${var.secrets == null ? "" : " --command-config client.properties"}"
}

output "client_config" {
  description = "The file on every machine that its commands of the user admin connect by; null without secrets."
  value       = module.nodes.client_config
}

output "user_data" {
  description = "The first-start document of each machine; marked sensitive for its length alone."
  sensitive   = true
  value       = module.nodes.user_data
}
