# What is refused, and which variable is named for it.

variables {
  name                   = "firn"
  vpc_id                 = "vpc-1"
  subnets                = { "eu-central-1a" = "subnet-a" }
  instance_ids           = { "1" = "i-1" }
  port                   = 9092
  client_cidrs           = ["10.20.0.0/16"]
  node_security_group_id = "sg-node"
  zone_id                = "Z1"
  domain                 = "firn.internal"
}

run "a_name_with_a_dot" {
  command = plan
  variables {
    name = "a.b"
  }
  expect_failures = [var.name]
}

run "a_port_that_is_none" {
  command = plan
  variables {
    port = 70000
  }
  expect_failures = [var.port]
}

run "the_internet_as_clients" {
  command = plan
  variables {
    client_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.client_cidrs]
}

run "half_of_the_internet_as_clients" {
  command = plan
  variables {
    client_cidrs = ["0.0.0.0/1", "128.0.0.0/1"]
  }
  expect_failures = [var.client_cidrs]
}
