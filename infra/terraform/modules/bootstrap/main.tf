# For the first connection alone: any machine that is up tells a client where the others are, and from then on the client
# speaks to them by their own names.

resource "aws_security_group" "bootstrap" {
  name        = "${var.name}-bootstrap"
  description = "The load balancer for first connections"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-bootstrap" }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = toset(var.client_cidrs)

  security_group_id = aws_security_group.bootstrap.id
  description       = "Kafka's protocol from clients"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = var.port
  to_port           = var.port
}

resource "aws_vpc_security_group_egress_rule" "nodes" {
  security_group_id            = aws_security_group.bootstrap.id
  description                  = "Kafka's protocol and health checks to machines"
  referenced_security_group_id = var.node_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
}

resource "aws_vpc_security_group_ingress_rule" "nodes" {
  security_group_id            = var.node_security_group_id
  description                  = "Kafka's protocol from the load balancer"
  referenced_security_group_id = aws_security_group.bootstrap.id
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
}

resource "aws_lb" "bootstrap" {
  name                             = "${var.name}-bootstrap"
  internal                         = true
  load_balancer_type               = "network"
  subnets                          = values(var.subnets)
  security_groups                  = [aws_security_group.bootstrap.id]
  enable_cross_zone_load_balancing = true
  enable_deletion_protection       = var.deletion_protection
}

resource "aws_lb_target_group" "bootstrap" {
  name                 = "${var.name}-bootstrap"
  vpc_id               = var.vpc_id
  target_type          = "instance"
  protocol             = "TCP"
  port                 = var.port
  deregistration_delay = 30

  # A machine that asks for its own name must reach itself through the load balancer, too.
  preserve_client_ip = false

  health_check {
    protocol            = "TCP"
    port                = "traffic-port"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_target_group_attachment" "node" {
  for_each = var.instance_ids

  target_group_arn = aws_lb_target_group.bootstrap.arn
  target_id        = each.value
  port             = var.port
}

resource "aws_lb_listener" "bootstrap" {
  load_balancer_arn = aws_lb.bootstrap.arn
  protocol          = "TCP"
  port              = var.port

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.bootstrap.arn
  }
}

resource "aws_route53_record" "bootstrap" {
  zone_id = var.zone_id
  name    = "bootstrap.${var.domain}"
  type    = "A"

  alias {
    name                   = aws_lb.bootstrap.dns_name
    zone_id                = aws_lb.bootstrap.zone_id
    evaluate_target_health = true
  }
}
