# One machine for trying out: no load balancer, no alarms, S3's own encryption.

provider "aws" {
  region = var.region

  default_tags {
    tags = { Application = "firn", Cluster = var.name }
  }
}

locals {
  secret_arns  = var.secrets == null ? [] : distinct([for arn in values(var.secrets) : arn if arn != null])
  client_cidrs = var.client_cidrs == null ? [var.cidr] : var.client_cidrs
  partition    = startswith(var.region, "cn-") ? "aws-cn" : startswith(var.region, "us-gov-") ? "aws-us-gov" : "aws"
}

module "network" {
  source = "../../modules/network"

  name        = var.name
  region      = var.region
  zones       = var.zones
  cidr        = var.cidr
  archive_arn = module.archive.arn
  secret_arns = local.secret_arns
}

module "archive" {
  source = "../../modules/archive"

  bucket    = var.bucket
  partition = local.partition
}

module "identity" {
  source = "../../modules/identity"

  name            = var.name
  archive_arn     = module.archive.arn
  secret_arns     = local.secret_arns
  secret_key_arns = var.secret_key_arns
}

module "nodes" {
  source = "../../modules/nodes"

  name                      = var.name
  machines                  = 1
  processes                 = 1
  zones                     = var.zones
  vpc_id                    = module.network.vpc_id
  subnets                   = module.network.subnets
  client_cidrs              = local.client_cidrs
  metrics_cidrs             = var.metrics_cidrs
  connect_security_group_id = module.network.connect_security_group_id
  key_name                  = var.key_name
  image_id                  = var.image_id
  root_device               = var.root_device
  instance_type             = var.instance_type
  instance_profile          = module.identity.instance_profile
  volume                    = var.volume
  package                   = var.package
  region                    = var.region
  remote_url                = "s3://${var.bucket}/firn"
  properties                = var.properties
  secrets                   = var.secrets
}
