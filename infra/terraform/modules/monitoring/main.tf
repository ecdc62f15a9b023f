# What only the cloud can see. Everything else is told by the nodes themselves (/metrics), whom Prometheus finds by their tag.

resource "aws_cloudwatch_metric_alarm" "machine" {
  for_each = var.instance_ids

  alarm_name          = "${var.name}-${each.key}-machine"
  alarm_description   = "Machine ${each.key} of ${var.name} does not answer. docs/deploy.md: a replaced machine with its volume."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed_Instance"
  dimensions          = { InstanceId = each.value }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 3
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}

# Hardware that fails below a machine: it is started again elsewhere in its zone, with its volumes and addresses.
resource "aws_cloudwatch_metric_alarm" "hardware" {
  for_each = var.instance_ids

  alarm_name          = "${var.name}-${each.key}-hardware"
  alarm_description   = "The hardware of machine ${each.key} of ${var.name} failed; the machine is recovered on other hardware."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed_System"
  dimensions          = { InstanceId = each.value }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 2
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  alarm_actions       = concat(["arn:${var.partition}:automate:${var.region}:ec2:recover"], var.alarm_actions)
  ok_actions          = var.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "disk" {
  for_each = var.instance_ids

  alarm_name          = "${var.name}-${each.key}-disk"
  alarm_description   = "A volume of machine ${each.key} of ${var.name} does not answer."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed_AttachedEBS"
  dimensions          = { InstanceId = each.value }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 2
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "bootstrap" {
  alarm_name          = "${var.name}-bootstrap"
  alarm_description   = "Machines of ${var.name} take no connections."
  namespace           = "AWS/NetworkELB"
  metric_name         = "UnHealthyHostCount"
  dimensions          = { LoadBalancer = var.load_balancer, TargetGroup = var.target_group }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 3
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}

# For the role of the Prometheus that scrapes; neither action can be narrowed to some machines.
resource "aws_iam_policy" "discovery" {
  name        = "${var.name}-discovery"
  description = "Find the machines of ${var.name} to scrape"

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["ec2:DescribeAvailabilityZones", "ec2:DescribeInstances"]
      Resource = "*"
    }]
  })
}
