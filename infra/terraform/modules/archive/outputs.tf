output "bucket" {
  description = "Name of the bucket, known once it is there."
  value       = aws_s3_bucket.archive.id
}

output "arn" {
  description = "ARN of the bucket, known beforehand."
  value       = local.arn
}

output "kms_key_arn" {
  description = "The key that objects are encrypted with; null where it is S3's own."
  value       = one(aws_kms_key.archive[*].arn)
}
