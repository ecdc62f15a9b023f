# A network without a way to the Internet: machines reach S3 through the gateway endpoint and secrets through an interface endpoint, people reach machines through the
# instance connect endpoint, clients come from within or from peered networks.

resource "aws_vpc" "this" {
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true

  tags = { Name = var.name }
}

# Whatever is put into the network without a security group of its own can speak to nobody.
resource "aws_default_security_group" "closed" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.name}-closed" }
}

resource "aws_subnet" "zone" {
  for_each = { for i, zone in var.zones : zone => i }

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.cidr, 4, each.value)
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-${each.key}" }
}

resource "aws_route_table" "zone" {
  for_each = aws_subnet.zone

  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.name}-${each.key}" }
}

resource "aws_route_table_association" "zone" {
  for_each = aws_subnet.zone

  subnet_id      = each.value.id
  route_table_id = aws_route_table.zone[each.key].id
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [for table in aws_route_table.zone : table.id]

  # What a machine may do is its role's to say; where data may go is said here.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TheArchiveAlone"
      Effect    = "Allow"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [var.archive_arn, "${var.archive_arn}/*"]
    }]
  })

  tags = { Name = "${var.name}-s3" }
}

resource "aws_vpc_endpoint" "secrets" {
  for_each = toset([for arn in var.secret_arns : split(":", arn)[2]])

  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for zone in var.zones : aws_subnet.zone[zone].id]
  security_group_ids  = [aws_security_group.secrets[0].id]

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TheSecretsAlone"
      Effect    = "Allow"
      Principal = "*"
      Action    = each.key == "ssm" ? "ssm:GetParameter" : "secretsmanager:GetSecretValue"
      Resource  = [for arn in var.secret_arns : arn if split(":", arn)[2] == each.key]
    }]
  })

  tags = { Name = "${var.name}-${each.key}" }
}

resource "aws_security_group" "secrets" {
  count = length(var.secret_arns) == 0 ? 0 : 1

  name        = "${var.name}-secrets"
  description = "The endpoint that machines reach secrets through"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${var.name}-secrets" }
}

resource "aws_vpc_security_group_ingress_rule" "secrets" {
  count = length(var.secret_arns) == 0 ? 0 : 1

  security_group_id = aws_security_group.secrets[0].id
  description       = "HTTPS from this network"
  cidr_ipv4         = var.cidr
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_security_group" "connect" {
  name        = "${var.name}-connect"
  description = "The instance connect endpoint: where people come in"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${var.name}-connect" }
}

resource "aws_vpc_security_group_egress_rule" "connect_ssh" {
  security_group_id = aws_security_group.connect.id
  description       = "SSH to machines of this network"
  cidr_ipv4         = var.cidr
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
}

resource "aws_ec2_instance_connect_endpoint" "this" {
  subnet_id          = aws_subnet.zone[var.zones[0]].id
  security_group_ids = [aws_security_group.connect.id]
  preserve_client_ip = false

  tags = { Name = "${var.name}-connect" }
}
