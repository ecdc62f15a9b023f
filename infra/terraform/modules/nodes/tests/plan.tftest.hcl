# A cluster: three machines of two brokers, three of a controller.

variables {
  name                      = "firn"
  machines                  = 3
  processes                 = 2
  controllers               = 3
  cluster_id                = "MkU3OEVBNTcwNTJENDM2Qg"
  formed_url                = "s3://example-firn-archive/formed"
  zones                     = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
  vpc_id                    = "vpc-1"
  subnets                   = { "eu-central-1a" = "subnet-a", "eu-central-1b" = "subnet-b", "eu-central-1c" = "subnet-c" }
  client_cidrs              = ["10.20.0.0/16", "10.30.0.0/16"]
  metrics_cidrs             = ["10.40.0.0/24"]
  connect_security_group_id = "sg-connect"
  image_id                  = "ami-0123456789abcdef0"
  instance_type             = "m7i.large"
  instance_profile          = "firn-node"
  volume                    = { size = 500, iops = 6000, throughput = 500 }
  package = {
    url    = "s3://example-firn-archive/packages/firn-0.1.0.tar"
    sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
  region     = "eu-central-1"
  remote_url = "s3://example-firn-archive/firn"
  properties = { "num.partitions" = "6" }
}

run "machines" {
  command = plan

  assert {
    condition     = [for m in ["1", "2", "3"] : aws_instance.node[m].subnet_id] == ["subnet-a", "subnet-b", "subnet-c"]
    error_message = "One machine in each zone."
  }
  assert {
    condition     = tolist([for m in ["1", "2", "3"] : aws_ebs_volume.data[m].availability_zone]) == var.zones
    error_message = "Its volume is in its machine's zone."
  }
  assert {
    condition = alltrue([for m, volume in aws_ebs_volume.data :
      volume.type == "gp3" && volume.encrypted && volume.final_snapshot &&
      [volume.size, volume.iops, volume.throughput] == (startswith(m, "c") ? [16, 3000, 125] : [500, 6000, 500])
    ])
    error_message = "gp3, encrypted, as large and fast as asked for, with a snapshot at its end."
  }
  assert {
    condition     = tolist([for m in ["c1", "c2", "c3"] : aws_ebs_volume.data[m].availability_zone]) == var.zones && tolist([for m in ["c1", "c2", "c3"] : aws_instance.node[m].subnet_id]) == tolist(["subnet-a", "subnet-b", "subnet-c"])
    error_message = "One controller in each zone, with a volume of its own."
  }
  assert {
    condition     = [for m in ["1", "c1"] : aws_launch_template.node[m].instance_type] == ["m7i.large", "t3.small"]
    error_message = "Controllers are machines of their own kind."
  }
  assert {
    condition     = [for m in ["1", "c1"] : aws_instance.node[m].tags.Role] == ["broker", "controller"]
    error_message = "Prometheus finds them by what they are."
  }
  assert {
    condition     = output.controllers == ["firn-c1.firn.internal:9093", "firn-c2.firn.internal:9093", "firn-c3.firn.internal:9093"]
    error_message = "Controllers have addresses that stay."
  }
  assert {
    condition     = toset(keys(output.broker_instance_ids)) == toset(["1", "2", "3"])
    error_message = "Clients are led to brokers alone."
  }
  assert {
    condition = alltrue([for rule in concat(values(aws_vpc_security_group_ingress_rule.quorum), values(aws_vpc_security_group_egress_rule.quorum)) :
      rule.from_port == 9093 && rule.to_port == 9093
    ]) && toset(keys(aws_vpc_security_group_ingress_rule.quorum)) == toset(["broker", "controller"])
    error_message = "Controllers are reached by nodes alone."
  }
  assert {
    condition     = alltrue([for attachment in aws_volume_attachment.data : attachment.device_name == "/dev/sdf" && attachment.stop_instance_before_detaching])
    error_message = "A machine is stopped before it loses its volume."
  }
  assert {
    condition = alltrue([for template in aws_launch_template.node :
      template.metadata_options[0].http_tokens == "required" && template.metadata_options[0].http_put_response_hop_limit == 1
    ])
    error_message = "IMDSv2 alone."
  }
  assert {
    condition     = alltrue([for template in aws_launch_template.node : alltrue([for ebs in template.block_device_mappings[0].ebs : tobool(ebs.encrypted)])])
    error_message = "Root disks are encrypted."
  }
  assert {
    condition     = [for m in ["1", "2", "3"] : aws_route53_record.node[m].name] == ["firn-1.firn.internal", "firn-2.firn.internal", "firn-3.firn.internal"]
    error_message = "Machines have names that stay."
  }
  assert {
    condition = output.servers == [
      "firn-1.firn.internal:9092", "firn-1.firn.internal:9093", "firn-2.firn.internal:9092",
      "firn-2.firn.internal:9093", "firn-3.firn.internal:9092", "firn-3.firn.internal:9093",
    ]
    error_message = "Two nodes on each machine, each with its port."
  }
  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.clients : rule.from_port == 9092 && rule.to_port == 9093])
    error_message = "Clients reach both."
  }
  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.metrics : rule.cidr_ipv4 == "10.40.0.0/24" && rule.from_port == 9464 && rule.to_port == 9465])
    error_message = "Metrics are for whom they are for."
  }
}

run "user_data" {
  command = plan

  assert {
    condition = jsondecode([
      for file in yamldecode(nonsensitive(output.user_data)["3"]).write_files : file.content if file.path == "/etc/firn/machine.json"
      ][0]) == {
      host           = "firn-3.firn.internal"
      nodes          = [{ id = 3, port = 9092, http_port = 9464, role = "broker", processes = 2 }]
      package        = { url = var.package.url, sha256 = var.package.sha256, region = "eu-central-1" }
      data           = { device = "/dev/sdf" }
      stop_timeout_s = 180
      cluster = {
        id     = var.cluster_id
        formed = "s3://example-firn-archive/formed"
        controllers = [
          "901@firn-c1.firn.internal:9093:MyLJOYL0dCyVuauCvWezRA",
          "902@firn-c2.firn.internal:9093:hlDHsDyksCzt5LjgcxQ3pA",
          "903@firn-c3.firn.internal:9093:HzOupb5AbfQMpHytwD2AzA",
        ]
      }
      properties = {
        "broker.rack"                      = "eu-central-1c"
        "default.replication.factor"       = "3"
        "firn.remote.url"                  = "s3://example-firn-archive/firn"
        "firn.remote.s3.region"            = "eu-central-1"
        "min.insync.replicas"              = "2"
        "num.partitions"                   = "6"
        "offsets.topic.replication.factor" = "3"
      }
    }
    error_message = "The document says what this machine is."
  }
  assert {
    condition = jsondecode([
      for file in yamldecode(nonsensitive(output.user_data)["c2"]).write_files : file.content if file.path == "/etc/firn/machine.json"
      ][0]) == {
      host           = "firn-c2.firn.internal"
      nodes          = [{ id = 902, port = 9093, http_port = 9464, role = "controller" }]
      package        = { url = var.package.url, sha256 = var.package.sha256, region = "eu-central-1" }
      data           = { device = "/dev/sdf" }
      stop_timeout_s = 180
      cluster = {
        id     = var.cluster_id
        formed = "s3://example-firn-archive/formed"
        controllers = [
          "901@firn-c1.firn.internal:9093:MyLJOYL0dCyVuauCvWezRA",
          "902@firn-c2.firn.internal:9093:hlDHsDyksCzt5LjgcxQ3pA",
          "903@firn-c3.firn.internal:9093:HzOupb5AbfQMpHytwD2AzA",
        ]
      }
      properties = {
        "controller.quorum.auto.join.enable" = "true"
        "default.replication.factor"         = "3"
        "firn.remote.url"                    = "s3://example-firn-archive/firn"
        "firn.remote.s3.region"              = "eu-central-1"
        "min.insync.replicas"                = "2"
        "num.partitions"                     = "6"
        "offsets.topic.replication.factor"   = "3"
      }
    }
    error_message = "The document says what this machine is."
  }
  assert {
    condition     = alltrue([for template in aws_launch_template.node : length(template.user_data) * 3 / 4 <= 16384])
    error_message = "It fits into what EC2 takes."
  }
  assert {
    condition     = contains([for file in yamldecode(nonsensitive(output.user_data)["1"]).write_files : file.path], "/usr/local/lib/firn/firn_boot/__main__.py")
    error_message = "The program comes along."
  }
}

run "secured_machines" {
  command = plan
  variables {
    secrets = {
      node        = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3"
      ca          = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/ca-a1b2c3"
      admin       = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/admin-a1b2c3"
      super_users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/super-users-a1b2c3"
      metrics     = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/metrics-a1b2c3"
    }
  }

  assert {
    condition = jsondecode([
      for file in yamldecode(nonsensitive(output.user_data)["3"]).write_files : file.content if file.path == "/etc/firn/machine.json"
      ][0]).nodes == [
      { id = 3, port = 9092, http_port = 9464, internal_port = 9192, role = "broker", processes = 2 },
    ]
    error_message = "Brokers have a listener for nodes, too."
  }
  assert {
    condition = jsondecode([
      for file in yamldecode(nonsensitive(output.user_data)["c2"]).write_files : file.content if file.path == "/etc/firn/machine.json"
    ][0]).nodes == [{ id = 902, port = 9093, http_port = 9464, role = "controller" }]
    error_message = "Controllers have one listener."
  }
  assert {
    condition = alltrue([for m in ["1", "c1"] : jsondecode([
      for file in yamldecode(nonsensitive(output.user_data)[m]).write_files : file.content if file.path == "/etc/firn/machine.json"
    ][0]).security == var.secrets])
    error_message = "Machines are told where secrets are, and not what is in them."
  }
  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.clients : rule.from_port == 9092 && rule.to_port == 9093])
    error_message = "Clients reach their listeners."
  }
  assert {
    condition = [
      for rule in [
        aws_vpc_security_group_ingress_rule.nodes, aws_vpc_security_group_egress_rule.nodes,
        one(aws_vpc_security_group_ingress_rule.brokers), one(aws_vpc_security_group_egress_rule.brokers),
      ] : "${rule.from_port}-${rule.to_port}"
    ] == ["9192-9193", "9192-9193", "9192-9193", "9192-9193"]
    error_message = "Nodes' own listeners are reached by nodes alone."
  }
  assert {
    condition     = output.client_config == "/etc/firn/secrets/client.properties"
    error_message = "Commands on a machine know how to log in."
  }
  assert {
    condition     = alltrue([for template in aws_launch_template.node : length(template.user_data) * 3 / 4 <= 16384])
    error_message = "It fits into what EC2 takes."
  }
}

run "a_secret_by_its_value_is_refused" {
  command = plan
  variables {
    secrets = {
      node        = "-----BEGIN PRIVATE KEY-----"
      ca          = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/ca-a1b2c3"
      admin       = "hunter2-and-more"
      super_users = "User:admin"
    }
  }
  expect_failures = [var.secrets]
}

run "super_users_beside_the_secret_are_refused" {
  command = plan
  variables {
    properties = { "super.users" = "User:me" }
    secrets = {
      node        = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3"
      ca          = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/ca-a1b2c3"
      admin       = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/admin-a1b2c3"
      super_users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/super-users-a1b2c3"
    }
  }
  expect_failures = [var.properties]
}

run "a_node_that_is_alone" {
  command = plan
  variables {
    machines    = 1
    processes   = 1
    controllers = 0
    cluster_id  = null
    formed_url  = null
    zones       = ["eu-central-1a"]
  }

  assert {
    condition = jsondecode([
      for file in yamldecode(nonsensitive(output.user_data)["1"]).write_files : file.content if file.path == "/etc/firn/machine.json"
      ][0]) == {
      host           = "firn-1.firn.internal"
      nodes          = [{ id = 1, port = 9092, http_port = 9464 }]
      package        = { url = var.package.url, sha256 = var.package.sha256, region = "eu-central-1" }
      data           = { device = "/dev/sdf" }
      stop_timeout_s = 180
      properties = {
        "broker.rack"           = "eu-central-1a"
        "firn.remote.url"       = "s3://example-firn-archive/firn"
        "firn.remote.s3.region" = "eu-central-1"
        "num.partitions"        = "6"
      }
    }
    error_message = "It knows of no cluster."
  }
  assert {
    condition     = length(aws_security_group.controller) == 0 && length(output.controllers) == 0 && keys(aws_instance.node) == ["1"]
    error_message = "There are no controllers."
  }
}

run "several_nodes_without_controllers_are_refused" {
  command = plan
  variables {
    controllers = 0
    cluster_id  = null
    formed_url  = null
  }
  expect_failures = [var.machines]
}

run "two_brokers_for_three_replicas_are_refused" {
  command = plan
  variables {
    machines = 2
  }
  expect_failures = [var.machines]
}

run "an_even_number_of_controllers_is_refused" {
  command = plan
  variables {
    controllers = 4
  }
  expect_failures = [var.controllers]
}

run "controllers_in_two_zones_are_refused" {
  command = plan
  variables {
    zones = ["eu-central-1a", "eu-central-1b"]
  }
  expect_failures = [var.controllers]
}

run "a_cluster_without_an_id_is_refused" {
  command = plan
  variables {
    cluster_id = null
  }
  expect_failures = [var.cluster_id]
}

run "an_id_that_is_none_is_refused" {
  command = plan
  variables {
    cluster_id = "firn"
  }
  expect_failures = [var.cluster_id]
}

run "forming_without_a_place_to_say_so_is_refused" {
  command = plan
  variables {
    formed_url = null
  }
  expect_failures = [var.formed_url]
}

run "a_volume_too_small_for_controllers_is_refused" {
  command = plan
  variables {
    controller_volume = { size = 4 }
  }
  expect_failures = [var.controller_volume]
}

run "a_controllers_type_that_is_none_is_refused" {
  command = plan
  variables {
    controller_instance_type = "small"
  }
  expect_failures = [var.controller_instance_type]
}

run "who_votes_is_made_of_the_rest" {
  command = plan
  variables {
    properties = { "controller.quorum.voters" = "1@a:9093" }
  }
  expect_failures = [var.properties]
}

run "the_internet_as_clients_is_refused" {
  command = plan
  variables {
    client_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.client_cidrs]
}

run "more_throughput_than_gp3_has_is_refused" {
  command = plan
  variables {
    volume = { size = 500, iops = 3000, throughput = 1000 }
  }
  expect_failures = [var.volume]
}

run "a_package_without_its_digest_is_refused" {
  command = plan
  variables {
    package = { url = "s3://example-firn-archive/packages/firn-0.1.0.tar", sha256 = "" }
  }
  expect_failures = [var.package]
}

run "a_package_without_encryption_is_refused" {
  command = plan
  variables {
    package = { url = "http://example.com/firn.tar", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "a_name_in_capitals_is_refused" {
  command = plan
  variables {
    name = "Firn"
  }
  expect_failures = [var.name]
}

run "no_machine_is_refused" {
  command = plan
  variables {
    machines = 0
  }
  expect_failures = [var.machines]
}

run "half_a_machine_is_refused" {
  command = plan
  variables {
    machines = 1.5
  }
  expect_failures = [var.machines]
}

run "a_hundred_processes_is_refused" {
  command = plan
  variables {
    processes = 100
  }
  expect_failures = [var.processes]
}

run "a_zone_without_a_subnet_is_refused" {
  command = plan
  variables {
    zones = ["eu-central-1a", "eu-central-1b", "eu-central-1d"]
  }
  expect_failures = [var.zones]
}

run "the_internet_by_another_name_as_clients_is_refused" {
  command = plan
  variables {
    client_cidrs = ["10.0.0.0/0"]
  }
  expect_failures = [var.client_cidrs]
}

run "addresses_of_version_6_as_clients_is_refused" {
  command = plan
  variables {
    client_cidrs = ["::/0"]
  }
  expect_failures = [var.client_cidrs]
}

run "the_internet_as_scrapers_is_refused" {
  command = plan
  variables {
    metrics_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.metrics_cidrs]
}

run "an_image_that_is_none_is_refused" {
  command = plan
  variables {
    image_id = "debian-12"
  }
  expect_failures = [var.image_id]
}

run "a_root_disk_of_another_name_is_refused" {
  command = plan
  variables {
    root_device = "/dev/sdf"
  }
  expect_failures = [var.root_device]
}

run "a_type_that_is_none_is_refused" {
  command = plan
  variables {
    instance_type = "large"
  }
  expect_failures = [var.instance_type]
}

run "a_profile_by_its_arn_is_refused" {
  command = plan
  variables {
    instance_profile = "arn:aws:iam::000000000000:instance-profile/firn-node"
  }
  expect_failures = [var.instance_profile]
}

run "more_operations_than_so_small_a_volume_has_is_refused" {
  command = plan
  variables {
    volume = { size = 10, iops = 6000, throughput = 500 }
  }
  expect_failures = [var.volume]
}

run "a_volume_of_half_a_gib_is_refused" {
  command = plan
  variables {
    volume = { size = 500.5, iops = 6000, throughput = 500 }
  }
  expect_failures = [var.volume]
}

run "a_key_by_its_alias_is_refused" {
  command = plan
  variables {
    volume = { size = 500, kms_key_id = "alias/firn" }
  }
  expect_failures = [var.volume]
}

run "a_package_with_a_password_in_its_url_is_refused" {
  command = plan
  variables {
    package = { url = "https://me:secret@example.com/firn.tar", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "a_region_that_is_none_is_refused" {
  command = plan
  variables {
    region = "eu-central-1a"
  }
  expect_failures = [var.region]
}

run "an_archive_that_is_no_bucket_is_refused" {
  command = plan
  variables {
    remote_url = "file:///tmp"
  }
  expect_failures = [var.remote_url]
}

run "a_property_that_is_made_of_the_rest_is_refused" {
  command = plan
  variables {
    properties = { "log.dirs" = "/tmp" }
  }
  expect_failures = [var.properties]
}

run "a_property_without_a_name_is_refused" {
  command = plan
  variables {
    properties = { "" = "1" }
  }
  expect_failures = [var.properties]
}

run "a_property_of_two_lines_is_refused" {
  command = plan
  variables {
    properties = { "num.partitions" = "1\nnode.id=7" }
  }
  expect_failures = [var.properties]
}

run "a_stop_without_time_is_refused" {
  command = plan
  variables {
    stop_timeout_s = 0
  }
  expect_failures = [var.stop_timeout_s]
}
