# A cluster: three controllers and three or more brokers, over three zones; a bucket with a key of its own, volumes and a load balancer
# that are not deleted by mistake. Any machine, or a zone, may go.

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
  kms       = true
}

module "identity" {
  source = "../../modules/identity"

  name            = var.name
  archive_arn     = module.archive.arn
  formed_prefix   = "formed"
  kms             = true
  kms_key_arn     = module.archive.kms_key_arn
  secret_arns     = local.secret_arns
  secret_key_arns = var.secret_key_arns
}

module "nodes" {
  source = "../../modules/nodes"

  name                      = var.name
  machines                  = var.brokers
  processes                 = var.processes
  controllers               = 3
  cluster_id                = var.cluster_id
  formed_url                = "s3://${var.bucket}/formed"
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
  controller_instance_type  = var.controller_instance_type
  instance_profile          = module.identity.instance_profile
  volume                    = var.volume
  controller_volume         = var.controller_volume
  package                   = var.package
  region                    = var.region
  remote_url                = "s3://${var.bucket}/firn"
  properties                = var.properties
  secrets                   = var.secrets
}

module "bootstrap" {
  source = "../../modules/bootstrap"

  name                   = var.name
  vpc_id                 = module.network.vpc_id
  subnets                = module.network.subnets
  instance_ids           = module.nodes.broker_instance_ids
  port                   = module.nodes.port
  client_cidrs           = local.client_cidrs
  node_security_group_id = module.nodes.security_group_id
  zone_id                = module.nodes.zone_id
  domain                 = module.nodes.domain
  deletion_protection    = var.deletion_protection
}

module "monitoring" {
  source = "../../modules/monitoring"

  name          = var.name
  region        = var.region
  partition     = local.partition
  instance_ids  = module.nodes.instance_ids
  load_balancer = module.bootstrap.load_balancer
  target_group  = module.bootstrap.target_group
  http_port     = module.nodes.http_port
  processes     = var.processes
  alarm_actions = var.alarm_actions
  scrape = var.secrets == null ? null : {
    server_name = "metrics.${var.name}.internal"
    token_file  = var.secrets.metrics == null ? null : "/etc/prometheus/firn.token"
  }
}
