output "scrape_config" {
  description = "For scrape_configs of prometheus.yml: finds the machines by their tag."
  value = yamlencode([{
    job_name = var.name
    ec2_sd_configs = [for p in range(var.processes) : {
      region  = var.region
      port    = var.http_port + p
      filters = [{ name = "tag:Cluster", values = [var.name] }, { name = "instance-state-name", values = ["running"] }]
    }]
    relabel_configs = [
      { source_labels = ["__meta_ec2_tag_Name", "__address__"], regex = "([^;]+);[^:]+:(\\d+)", replacement = "$1:$2", target_label = "instance" },
      { source_labels = ["__meta_ec2_availability_zone"], target_label = "zone" },
    ]
  }])
}

output "discovery_policy_arn" {
  description = "Policy for the role of the Prometheus that scrapes."
  value       = aws_iam_policy.discovery.arn
}
