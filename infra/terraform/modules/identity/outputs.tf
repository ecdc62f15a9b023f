output "instance_profile" {
  description = "Name of the instance profile."
  value       = aws_iam_instance_profile.node.name
}

output "role" {
  description = "Name of the role, to attach more to."
  value       = aws_iam_role.node.name
}
