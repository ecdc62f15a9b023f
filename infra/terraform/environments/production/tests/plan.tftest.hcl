# What is planned, on any provider that serves the AWS provider's schema.

variables {
  region   = "eu-central-1"
  zones    = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
  bucket   = "example-firn-archive"
  image_id = "ami-0123456789abcdef0"

  cluster_id = "MkU3OEVBNTcwNTJENDM2Qg"
  package = {
    url    = "s3://example-firn-archive/packages/firn-0.1.0.tar"
    sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
  secrets = {
    node        = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3"
    ca          = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/ca-a1b2c3"
    admin       = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/admin-a1b2c3"
    super_users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/super-users-a1b2c3"
  }
}

run "network" {
  command = plan
  module {
    source = "../../modules/network"
  }
  variables {
    name        = "firn"
    archive_arn = "arn:aws:s3:::example-firn-archive"
  }

  assert {
    condition     = tolist([for zone in var.zones : aws_subnet.zone[zone].availability_zone]) == var.zones
    error_message = "One subnet in each zone."
  }
  assert {
    condition     = length(distinct([for subnet in aws_subnet.zone : subnet.cidr_block])) == 3
    error_message = "Subnets have addresses of their own."
  }
  assert {
    condition     = alltrue([for subnet in aws_subnet.zone : !subnet.map_public_ip_on_launch])
    error_message = "No machine gets a public address."
  }
  assert {
    condition     = aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway" && aws_vpc_endpoint.s3.service_name == "com.amazonaws.eu-central-1.s3"
    error_message = "S3 is reached through a gateway endpoint."
  }
  assert {
    condition     = jsondecode(aws_vpc_endpoint.s3.policy).Statement[0].Resource == ["arn:aws:s3:::example-firn-archive", "arn:aws:s3:::example-firn-archive/*"]
    error_message = "The endpoint leads to the archive alone."
  }
}

run "network_with_secrets" {
  command = plan
  module {
    source = "../../modules/network"
  }
  variables {
    name        = "firn"
    archive_arn = "arn:aws:s3:::example-firn-archive"
    secret_arns = [
      "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3",
      "arn:aws:ssm:eu-central-1:123456789012:parameter/firn/admin",
    ]
  }

  assert {
    condition = { for service, endpoint in aws_vpc_endpoint.secrets : service => [endpoint.service_name, endpoint.vpc_endpoint_type, endpoint.private_dns_enabled] } == {
      secretsmanager = ["com.amazonaws.eu-central-1.secretsmanager", "Interface", true]
      ssm            = ["com.amazonaws.eu-central-1.ssm", "Interface", true]
    }
    error_message = "Secrets are reached without a way to the Internet."
  }
  assert {
    condition = { for service, endpoint in aws_vpc_endpoint.secrets : service => [for one in jsondecode(endpoint.policy).Statement : [one.Action, one.Resource]] } == {
      secretsmanager = [["secretsmanager:GetSecretValue", ["arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3"]]]
      ssm            = [["ssm:GetParameter", ["arn:aws:ssm:eu-central-1:123456789012:parameter/firn/admin"]]]
    }
    error_message = "And no others."
  }
  assert {
    condition     = one(aws_vpc_security_group_ingress_rule.secrets).cidr_ipv4 == "10.20.0.0/16" && one(aws_vpc_security_group_ingress_rule.secrets).to_port == 443
    error_message = "From this network alone."
  }
}

run "archive" {
  command = plan
  module {
    source = "../../modules/archive"
  }
  variables {
    kms = true
  }

  assert {
    condition     = aws_s3_bucket_versioning.archive.versioning_configuration[0].status == "Enabled"
    error_message = "Versioned."
  }
  assert {
    condition     = aws_s3_bucket.archive.force_destroy == false
    error_message = "A bucket with anything in it is not deleted."
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.archive.rule).apply_server_side_encryption_by_default).sse_algorithm == "aws:kms"
    error_message = "Encrypted with the key."
  }
  assert {
    condition     = one(aws_kms_key.archive).enable_key_rotation
    error_message = "The key rotates."
  }
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.archive.block_public_acls,
      aws_s3_bucket_public_access_block.archive.block_public_policy,
      aws_s3_bucket_public_access_block.archive.ignore_public_acls,
      aws_s3_bucket_public_access_block.archive.restrict_public_buckets,
    ])
    error_message = "Public access is blocked in all four ways."
  }
  assert {
    condition = alltrue([for statement in jsondecode(aws_s3_bucket_policy.archive.policy).Statement :
      statement.Effect == "Deny" && statement.Condition.Bool["aws:SecureTransport"] == "false" && contains(statement.Resource, "arn:aws:s3:::example-firn-archive/*")
    ])
    error_message = "Connections without TLS are refused."
  }
  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.archive.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 7
    error_message = "Unfinished uploads go after a week."
  }
  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.archive.rule[1].noncurrent_version_expiration[0].noncurrent_days == 30
    error_message = "Old versions go after a month."
  }
  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.archive.rule : alltrue([for expiration in rule.expiration : coalesce(expiration.days, 0) == 0 && expiration.date == null])])
    error_message = "Nothing that is current expires."
  }
}

run "identity" {
  command = plan
  module {
    source = "../../modules/identity"
  }
  variables {
    name          = "firn"
    archive_arn   = "arn:aws:s3:::example-firn-archive"
    formed_prefix = "formed"
    kms           = true
    kms_key_arn   = "arn:aws:kms:eu-central-1:000000000000:key/1"
  }

  assert {
    condition = toset(flatten([for statement in jsondecode(aws_iam_role_policy.archive.policy).Statement : statement.Action])) == toset([
      "s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject",
    ])
    error_message = "What Firn needs of S3, and no more."
  }
  assert {
    condition     = !strcontains(aws_iam_role_policy.archive.policy, "\"*\"")
    error_message = "No policy is for everything."
  }
  assert {
    condition = alltrue([for statement in jsondecode(aws_iam_role_policy.archive.policy).Statement :
      statement.Resource == ["arn:aws:s3:::example-firn-archive/firn/*"] || !anytrue([for action in flatten([statement.Action]) : contains(["s3:DeleteObject", "s3:PutObject"], action)])
    ])
    error_message = "Written and deleted is below the prefix alone."
  }
  assert {
    condition = jsondecode(one(aws_iam_role_policy.formed).policy).Statement == [
      {
        Sid       = "Formed"
        Effect    = "Allow"
        Action    = ["s3:PutObject"]
        Resource  = ["arn:aws:s3:::example-firn-archive/formed/*"]
        Condition = { Null = { "s3:if-none-match" = "false" } }
      },
      { Sid = "WhoWasFormed", Effect = "Allow", Action = ["s3:GetObject"], Resource = ["arn:aws:s3:::example-firn-archive/formed/*"] },
    ]
    error_message = "Who was formed is said once, and never taken back."
  }
  assert {
    condition     = toset(jsondecode(one(aws_iam_role_policy.key).policy).Statement[0].Action) == toset(["kms:Decrypt", "kms:GenerateDataKey"])
    error_message = "The key is used, and not managed."
  }
  assert {
    condition     = length(aws_iam_role_policy.secrets) == 0
    error_message = "Without secrets none is read."
  }
  assert {
    condition     = jsondecode(aws_iam_role.node.assume_role_policy).Statement[0].Principal.Service == "ec2.amazonaws.com"
    error_message = "Machines alone take the role."
  }
}

run "identity_with_secrets" {
  command = plan
  module {
    source = "../../modules/identity"
  }
  variables {
    name        = "firn"
    archive_arn = "arn:aws:s3:::example-firn-archive"
    secret_arns = [
      "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3",
      "arn:aws:ssm:eu-central-1:123456789012:parameter/firn/admin",
    ]
    secret_key_arns = ["arn:aws:kms:eu-central-1:123456789012:key/1"]
  }

  assert {
    condition = jsondecode(one(aws_iam_role_policy.secrets).policy).Statement == [
      { Sid = "Secrets", Effect = "Allow", Action = ["secretsmanager:GetSecretValue"], Resource = ["arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3"] },
      { Sid = "Parameters", Effect = "Allow", Action = ["ssm:GetParameter"], Resource = ["arn:aws:ssm:eu-central-1:123456789012:parameter/firn/admin"] },
      {
        Sid       = "KeyOfSecrets0"
        Effect    = "Allow"
        Action    = ["kms:Decrypt"]
        Resource  = ["arn:aws:kms:eu-central-1:123456789012:key/1"]
        Condition = { StringEquals = { "kms:ViaService" = ["secretsmanager.eu-central-1.amazonaws.com", "ssm.eu-central-1.amazonaws.com"] } }
      },
    ]
    error_message = "Secrets are read by their ARNs alone, and neither listed nor written."
  }
}

run "everything" {
  command = plan

  assert {
    condition     = output.bootstrap_servers == "bootstrap.firn.internal:9092"
    error_message = "Clients begin at the load balancer."
  }
  assert {
    condition     = output.servers == ["firn-1.firn.internal:9092", "firn-2.firn.internal:9092", "firn-3.firn.internal:9092"]
    error_message = "And go on to the brokers."
  }
  assert {
    condition     = output.controllers == ["firn-c1.firn.internal:9093", "firn-c2.firn.internal:9093", "firn-c3.firn.internal:9093"]
    error_message = "Three controllers."
  }
  assert {
    condition     = tolist([for m in ["1", "2", "3", "c1", "c2", "c3"] : output.machines[m].zone]) == concat(var.zones, var.zones)
    error_message = "A broker and a controller in each zone."
  }
  assert {
    condition     = output.client_config == "/etc/firn/secrets/client.properties"
    error_message = "Secured by default."
  }
  assert {
    condition     = startswith(nonsensitive(output.user_data)["1"], "#cloud-config\n")
    error_message = "cloud-init knows its document by the first line."
  }
}

run "neither_secrets_nor_plaintext_is_refused" {
  command = plan
  variables {
    secrets = null
  }
  expect_failures = [var.secrets]
}

run "both_secrets_and_plaintext_is_refused" {
  command = plan
  variables {
    plaintext = true
  }
  expect_failures = [var.secrets]
}

run "plaintext_is_said" {
  command = plan
  variables {
    secrets   = null
    plaintext = true
  }

  assert {
    condition     = output.client_config == null
    error_message = "Nobody logs in."
  }
}

run "two_brokers_are_refused" {
  command = plan
  variables {
    brokers = 2
  }
  expect_failures = [var.brokers]
}

run "an_id_that_is_none_is_refused" {
  command = plan
  variables {
    cluster_id = "-kU3OEVBNTcwNTJENDM2Qg"
  }
  expect_failures = [var.cluster_id]
}

run "more_brokers_change_no_controller" {
  command = plan
  variables {
    brokers   = 5
    processes = 2
  }

  assert {
    condition     = length(output.servers) == 10 && length(output.controllers) == 3 && output.machines["5"].zone == "eu-central-1b"
    error_message = "Five machines of two brokers."
  }
}

run "zones_of_another_region_are_refused" {
  command = plan
  variables {
    zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
  }
  expect_failures = [var.zones]
}

run "one_zone_three_times_is_refused" {
  command = plan
  variables {
    zones = ["eu-central-1a", "eu-central-1a", "eu-central-1a"]
  }
  expect_failures = [var.zones]
}

run "a_user_with_a_command_in_it_is_refused" {
  command = plan
  variables {
    ssh_user = "admin; reboot"
  }
  expect_failures = [var.ssh_user]
}

run "a_package_out_of_reach_is_refused" {
  command = plan
  variables {
    package = {
      url    = "https://example.com/firn-0.1.0.tar"
      sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    }
  }
  expect_failures = [var.package]
}
