output "scrape_config" {
  description = "For scrape_configs of prometheus.yml: finds the machines by their tag."
  value = yamlencode([merge({
    # The rules of infra/monitoring are for jobs whose name begins so.
    job_name = startswith(var.name, "firn") ? var.name : "firn-${var.name}"
    # A controller is the one node of its machine.
    ec2_sd_configs = [for p in range(var.processes) : {
      region = var.region
      port   = var.http_port + p
      filters = [
        { name = "tag:Cluster", values = [var.name] },
        { name = "tag:Role", values = p == 0 ? ["broker", "controller"] : ["broker"] },
        # A machine that was stopped is still to be asked, in vain: or nobody would be told.
        { name = "instance-state-name", values = ["running", "stopping", "stopped"] },
      ]
    }]
    relabel_configs = [
      { source_labels = ["__meta_ec2_tag_Name", "__address__"], regex = "([^;]+);[^:]+:(\\d+)", replacement = "$1:$2", target_label = "instance" },
      { source_labels = ["__meta_ec2_availability_zone"], target_label = "zone" },
    ]
    },
    { for key in ["scheme"] : key => "https" if var.scrape != null },
    # Targets are addresses, which a certificate for names does not have.
    { for key in ["tls_config"] : key => { ca_file = "/etc/prometheus/firn-ca.pem", server_name = var.scrape.server_name } if var.scrape != null },
    { for key in ["authorization"] : key => { credentials_file = var.scrape.token_file } if try(var.scrape.token_file, null) != null },
  )])
}

output "discovery_policy_arn" {
  description = "Policy for the role of the Prometheus that scrapes."
  value       = aws_iam_policy.discovery.arn
}
