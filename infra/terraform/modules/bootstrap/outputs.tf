output "server" {
  description = "host:port to give to clients as bootstrap.servers."
  value       = "bootstrap.${var.domain}:${var.port}"
}

output "load_balancer" {
  description = "The load balancer's name in CloudWatch."
  value       = aws_lb.bootstrap.arn_suffix
}

output "target_group" {
  description = "The target group's name in CloudWatch."
  value       = aws_lb_target_group.bootstrap.arn_suffix
}
