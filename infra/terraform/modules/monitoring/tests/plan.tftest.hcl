# What is refused, and which variable is named for it.

variables {
  name          = "firn"
  region        = "eu-central-1"
  instance_ids  = { "1" = "i-1", "2" = "i-2" }
  load_balancer = "net/firn-bootstrap/1"
  target_group  = "targetgroup/firn-bootstrap/1"
  http_port     = 9464
  processes     = 2
}

run "a_region_that_is_none" {
  command = plan
  variables {
    region = "eu"
  }
  expect_failures = [var.region]
}

run "another_partition" {
  command = plan
  variables {
    partition = "azure"
  }
  expect_failures = [var.partition]
}

run "a_port_that_is_none" {
  command = plan
  variables {
    http_port = 0
  }
  expect_failures = [var.http_port]
}

run "no_process" {
  command = plan
  variables {
    processes = 0
  }
  expect_failures = [var.processes]
}

run "an_action_that_is_no_arn" {
  command = plan
  variables {
    alarm_actions = ["operations@example.com"]
  }
  expect_failures = [var.alarm_actions]
}

run "a_machine_is_a_target_whether_it_runs_or_not" {
  command = plan

  assert {
    condition     = yamldecode(output.scrape_config)[0].ec2_sd_configs[*].port == [9464, 9465]
    error_message = "Each node of a machine is one."
  }
  assert {
    condition     = yamldecode(output.scrape_config)[0].ec2_sd_configs[0].filters[0] == { name = "tag:Cluster", values = ["firn"] }
    error_message = "Found by their tag."
  }
  assert {
    condition     = yamldecode(output.scrape_config)[0].ec2_sd_configs[*].filters[1].values == [["broker", "controller"], ["broker"]]
    error_message = "A controller's machine has one node."
  }
  assert {
    condition     = contains(yamldecode(output.scrape_config)[0].ec2_sd_configs[0].filters[2].values, "stopped")
    error_message = "Or FirnNodeDown would end when a machine is stopped."
  }
  assert {
    condition     = replace("firn-1.firn.internal;10.20.0.5:9464", "/${yamldecode(output.scrape_config)[0].relabel_configs[0].regex}/", "$1:$2") == "firn-1.firn.internal:9464"
    error_message = "Its name, with the port of the node."
  }
}

run "nodes_with_secrets_are_asked_over_https" {
  command = plan
  variables {
    scrape = { server_name = "metrics.firn.internal", token_file = "/etc/prometheus/firn.token" }
  }

  assert {
    condition     = yamldecode(output.scrape_config)[0].scheme == "https" && yamldecode(output.scrape_config)[0].tls_config == { ca_file = "/etc/prometheus/firn-ca.pem", server_name = "metrics.firn.internal" }
    error_message = "By a name that the nodes' certificate has."
  }
  assert {
    condition     = yamldecode(output.scrape_config)[0].authorization.credentials_file == "/etc/prometheus/firn.token"
    error_message = "With the token."
  }
}

run "nodes_without_a_token_are_asked_without_one" {
  command = plan
  variables {
    scrape = { server_name = "metrics.firn.internal" }
  }

  assert {
    condition     = !can(yamldecode(output.scrape_config)[0].authorization)
    error_message = "There is none."
  }
}

run "the_job_is_called_what_the_rules_are_for" {
  command = plan
  variables {
    name = "archive"
  }

  assert {
    condition     = yamldecode(output.scrape_config)[0].job_name == "firn-archive"
    error_message = "up{job=~\"firn.*\"} would never be true."
  }
}

run "recovery_is_asked_of_the_partition" {
  command = plan
  variables {
    region    = "cn-north-1"
    partition = "aws-cn"
  }

  assert {
    condition     = contains(aws_cloudwatch_metric_alarm.hardware["1"].alarm_actions, "arn:aws-cn:automate:cn-north-1:ec2:recover")
    error_message = "China's names are other ones."
  }
}
