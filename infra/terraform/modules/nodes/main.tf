# Machines: one launch template, instance, data volume and private name each. A volume is not its instance's: it stays in its
# zone when the machine is replaced, and goes to the next one under the same name. Machines "1", "2" and so on hold partitions;
# "c1" to "c3" are the controllers of a cluster, and hold its metadata alone. Without controllers there is one node, which is both.

locals {
  domain          = "${var.name}.internal"
  port            = 9092
  controller_port = 9093
  internal_port   = 9192
  http_port       = 9464
  data_device     = "/dev/sdf"
  in_cluster      = var.controllers > 0

  # With secrets, brokers have a listener for clients and one for nodes; without, nodes come where clients come.
  nodes_port = local.in_cluster && var.secrets != null ? local.internal_port : local.port

  # Addresses and directory ids are what controllers know each other by: they never change. An id has the form of Kafka's, 16 bytes
  # in 22 characters of which the last has two bits, and does not look like an option.
  voters = [
    for c in range(1, var.controllers + 1) : {
      id   = 900 + c
      host = "firn-c${c}.${local.domain}"
      port = local.controller_port
      directory_id = format("%sA", substr(
        replace(replace(base64sha256("${coalesce(var.cluster_id, "none")}/${900 + c}"), "+", "x"), "/", "y"), 0, 21,
      ))
    }
  ]

  initial_controllers = [for voter in local.voters : "${voter.id}@${voter.host}:${voter.port}:${voter.directory_id}"]

  broker_machines = {
    for m in range(1, var.machines + 1) : tostring(m) => {
      host          = "firn-${m}.${local.domain}"
      zone          = var.zones[(m - 1) % length(var.zones)]
      role          = "broker"
      instance_type = var.instance_type
      volume        = var.volume
      nodes = [
        for p in range(var.processes) : merge(
          {
            id        = 1000 * p + m
            port      = local.port + p
            http_port = local.http_port + p
          },
          { for key in ["internal_port"] : key => local.internal_port + p if local.nodes_port == local.internal_port },
        )
      ]
    }
  }

  controller_machines = {
    for c in range(1, var.controllers + 1) : "c${c}" => {
      host          = local.voters[c - 1].host
      zone          = var.zones[(c - 1) % length(var.zones)]
      role          = "controller"
      instance_type = var.controller_instance_type
      volume        = var.controller_volume
      nodes = [{
        id        = local.voters[c - 1].id
        port      = local.controller_port
        http_port = local.http_port
      }]
    }
  }

  machines = merge(local.broker_machines, local.controller_machines)

  # Three copies of everything, two of which have what is acknowledged: any one machine may go. Controllers are asked for these, too.
  replicated = {
    "default.replication.factor"       = "3"
    "min.insync.replicas"              = "2"
    "offsets.topic.replication.factor" = "3"
  }

  # What infra/boot makes a machine of; it refuses what it does not know.
  documents = {
    for m, machine in local.machines : m => merge(
      {
        host = machine.host
        # One service for all nodes of the machine: firn_boot makes the others of the first.
        nodes = [merge(
          machine.nodes[0],
          { for key in ["role"] : key => machine.role if local.in_cluster },
          { for key in ["processes"] : key => length(machine.nodes) if length(machine.nodes) > 1 },
        )]
        package        = merge(var.package, { region = var.region })
        data           = { device = local.data_device }
        stop_timeout_s = var.stop_timeout_s
        properties = merge(
          {
            "firn.remote.url"       = var.remote_url
            "firn.remote.s3.region" = var.region
          },
          { for key in ["broker.rack"] : key => machine.zone if machine.role == "broker" },
          { for key, value in local.replicated : key => value if local.in_cluster },
          { for key in ["controller.quorum.auto.join.enable"] : key => "true" if machine.role == "controller" },
          var.properties,
        )
      },
      { for key in ["security"] : key => { for name, arn in var.secrets : name => arn if arn != null } if var.secrets != null },
      { for key in ["cluster"] : key => { id = var.cluster_id, controllers = local.initial_controllers, formed = var.formed_url } if local.in_cluster },
    )
  }

  program = "${path.module}/../../../boot/firn_boot"

  # There are 16 KiB for everything. So what people read of the program stays here: what a file, a value and a function say of
  # themselves (a 0 stands where that was all), lines of remarks, types of arguments and results, three of four spaces in front,
  # ends of lines within brackets. A test compares what is left with the program.
  packed = {
    for name in fileset(local.program, "*.py") : name => replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
      file("${local.program}/${name}"),
      "/^(?s:\"\"\".*?\"\"\"\\n+)/", ""),
      "/(?ms)^\"\"\"[A-Z(`\"].*?\"\"\"\\n/", ""),
      "/(?m)^ +\"\"\"[A-Za-z(`\"](?:\"{0,2}[^\"])*\"\"\"\\n( +)/", "$1"),
      "/(?ms)^( +)\"\"\"[A-Za-z(`\"].*?\"\"\"\\n/", "$${1}0\n"),
      "/(?m)^ +# .*\\n/", ""),
      "/(?m)\\) -> [^:\\n\"]+:\\n/", "):\n"),
      "/(\\w+): (?:Machine|Document|Node|Cluster|Path|Package|Claim|Get|str|int|bool|object|bytes|(?:dict|set|tuple|list)\\[[\\w, .]*\\])(?: \\| None)?([,)])/", "$1$2"),
      "/([(\\[{,])\\n */", "$1"),
    "    ", " "), "\n\n\n", "\n")
  }

  # cloud-init writes the program, its document and a unit that tries until it is done, and calls it. Files have the mode 0644.
  first_start = {
    for m, document in local.documents : m => {
      hostname          = split(".", document.host)[0]
      fqdn              = document.host
      manage_etc_hosts  = true
      package_update    = false
      disable_root      = true
      ssh_pwauth        = false
      preserve_hostname = false
      write_files = concat(
        [for name in sort(keys(local.packed)) : {
          path    = "/usr/local/lib/firn/firn_boot/${name}"
          content = local.packed[name]
        }],
        [
          {
            path    = "/etc/firn/machine.json"
            content = jsonencode(document)
          },
          {
            path    = "/etc/systemd/system/firn-boot.service"
            content = file("${path.module}/firn-boot.service")
          },
        ],
      )
      runcmd = [["systemctl", "enable", "--now", "--no-block", "firn-boot.service"]]
    }
  }

  # Who speaks to controllers, by a name that is known before the groups are there.
  quorum_peers = {
    for who, ids in { broker = [aws_security_group.node.id], controller = aws_security_group.controller[*].id } : who => ids[0]
    if local.in_cluster
  }

  # JSON is YAML.
  user_data = { for m, start in local.first_start : m => "#cloud-config\n${jsonencode(start)}\n" }
}

resource "aws_security_group" "node" {
  name        = "${var.name}-node"
  description = "Machines of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-node" }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = toset(var.client_cidrs)

  security_group_id = aws_security_group.node.id
  description       = "Kafka's protocol from clients"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = local.port
  to_port           = local.port + var.processes - 1
}

resource "aws_vpc_security_group_ingress_rule" "nodes" {
  security_group_id            = aws_security_group.node.id
  description                  = "Kafka's protocol between nodes"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "tcp"
  from_port                    = local.nodes_port
  to_port                      = local.nodes_port + var.processes - 1
}

resource "aws_vpc_security_group_ingress_rule" "metrics" {
  for_each = toset(var.metrics_cidrs)

  security_group_id = aws_security_group.node.id
  description       = "Metrics and health"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = local.http_port
  to_port           = local.http_port + var.processes - 1
}

# Controllers are reached by nodes alone.
resource "aws_security_group" "controller" {
  count = local.in_cluster ? 1 : 0

  name        = "${var.name}-controller"
  description = "Controllers of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-controller" }
}

resource "aws_vpc_security_group_ingress_rule" "quorum" {
  for_each = local.quorum_peers

  security_group_id            = aws_security_group.controller[0].id
  description                  = "Kafka's protocol to controllers"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = local.controller_port
  to_port                      = local.controller_port
}

resource "aws_vpc_security_group_egress_rule" "quorum" {
  for_each = local.quorum_peers

  security_group_id            = each.value
  description                  = "Kafka's protocol to controllers"
  referenced_security_group_id = aws_security_group.controller[0].id
  ip_protocol                  = "tcp"
  from_port                    = local.controller_port
  to_port                      = local.controller_port
}

# Controllers ask a broker that seems to be gone whether it is.
resource "aws_vpc_security_group_ingress_rule" "brokers" {
  count = local.in_cluster ? 1 : 0

  security_group_id            = aws_security_group.node.id
  description                  = "Kafka's protocol from controllers"
  referenced_security_group_id = aws_security_group.controller[0].id
  ip_protocol                  = "tcp"
  from_port                    = local.nodes_port
  to_port                      = local.nodes_port + var.processes - 1
}

resource "aws_vpc_security_group_egress_rule" "brokers" {
  count = local.in_cluster ? 1 : 0

  security_group_id            = aws_security_group.controller[0].id
  description                  = "Kafka's protocol to brokers"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "tcp"
  from_port                    = local.nodes_port
  to_port                      = local.nodes_port + var.processes - 1
}

resource "aws_vpc_security_group_ingress_rule" "controller_metrics" {
  for_each = local.in_cluster ? toset(var.metrics_cidrs) : toset([])

  security_group_id = aws_security_group.controller[0].id
  description       = "Metrics and health"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = local.http_port
  to_port           = local.http_port
}

resource "aws_vpc_security_group_ingress_rule" "controller_ssh" {
  count = local.in_cluster ? 1 : 0

  security_group_id            = aws_security_group.controller[0].id
  description                  = "SSH from the instance connect endpoint"
  referenced_security_group_id = var.connect_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
}

resource "aws_vpc_security_group_egress_rule" "controller_https" {
  count = local.in_cluster ? 1 : 0

  security_group_id = aws_security_group.controller[0].id
  description       = "HTTPS to S3, and to where secrets are"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  security_group_id            = aws_security_group.node.id
  description                  = "SSH from the instance connect endpoint"
  referenced_security_group_id = var.connect_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
}

# The network has no way out but to S3 and to where secrets are.
resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.node.id
  description       = "HTTPS to S3, and to where secrets are"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "nodes" {
  security_group_id            = aws_security_group.node.id
  description                  = "Kafka's protocol between nodes"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "tcp"
  from_port                    = local.nodes_port
  to_port                      = local.nodes_port + var.processes - 1
}

resource "aws_launch_template" "node" {
  for_each = local.machines

  name                   = "${var.name}-${each.key}"
  description            = "Machine ${each.key} of ${var.name}"
  update_default_version = true
  image_id               = var.image_id
  instance_type          = each.value.instance_type
  key_name               = var.key_name
  ebs_optimized          = true
  user_data              = base64gzip(local.user_data[each.key])
  vpc_security_group_ids = [each.value.role == "controller" ? one(aws_security_group.controller[*].id) : aws_security_group.node.id]

  iam_instance_profile {
    name = var.instance_profile
  }

  # IMDSv2 alone, and not through a container's or a proxy's hop.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  monitoring {
    enabled = true
  }

  block_device_mappings {
    device_name = var.root_device

    ebs {
      volume_type           = "gp3"
      volume_size           = 16
      encrypted             = true
      delete_on_termination = true
    }
  }

  lifecycle {
    precondition {
      condition     = length(base64gzip(local.user_data[each.key])) * 3 / 4 <= 16384
      error_message = "EC2 takes 16,384 bytes of (compressed) user data at most."
    }
  }
}

resource "aws_instance" "node" {
  for_each = local.machines

  subnet_id = var.subnets[each.value.zone]

  launch_template {
    id      = aws_launch_template.node[each.key].id
    version = aws_launch_template.node[each.key].latest_version
  }

  tags = {
    Name      = each.value.host
    Cluster   = var.name
    Role      = each.value.role
    HttpPorts = join(" ", each.value.nodes[*].http_port)
  }

  # A new image or document is for machines to come: all machines replaced at once would be an outage. infra/roll replaces one at a
  # time, each when nothing lacks a replica:
  # terraform apply -replace='module.nodes.aws_instance.node["1"]'
  lifecycle {
    ignore_changes = [ami, launch_template]
  }
}

resource "aws_ebs_volume" "data" {
  for_each = local.machines

  availability_zone = each.value.zone
  type              = "gp3"
  size              = each.value.volume.size
  iops              = each.value.volume.iops
  throughput        = each.value.volume.throughput
  encrypted         = true
  kms_key_id        = each.value.volume.kms_key_id
  final_snapshot    = each.value.volume.snapshot

  tags = { Name = "${var.name}-${each.key}-data" }
}

resource "aws_volume_attachment" "data" {
  for_each = local.machines

  device_name = local.data_device
  volume_id   = aws_ebs_volume.data[each.key].id
  instance_id = aws_instance.node[each.key].id

  # A node that is stopped cleanly, and then loses its disk; not the other way round.
  stop_instance_before_detaching = true
}

resource "aws_route53_zone" "private" {
  name    = local.domain
  comment = "Names of ${var.name}'s machines"

  vpc {
    vpc_id = var.vpc_id
  }
}

resource "aws_route53_record" "node" {
  for_each = local.machines

  zone_id = aws_route53_zone.private.zone_id
  name    = each.value.host
  type    = "A"
  ttl     = 30
  records = [aws_instance.node[each.key].private_ip]
}
