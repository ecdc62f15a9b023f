# What is refused, and which variable is named for it.

variables {
  name        = "firn"
  region      = "eu-central-1"
  zones       = ["eu-central-1a"]
  archive_arn = "arn:aws:s3:::example-firn-archive"
}

run "a_name_in_capitals" {
  command = plan
  variables {
    name = "Firn"
  }
  expect_failures = [var.name]
}

run "a_name_that_is_too_long_for_a_load_balancer" {
  command = plan
  variables {
    name = "firn-of-the-whole-company"
  }
  expect_failures = [var.name]
}

run "no_region" {
  command = plan
  variables {
    region = "Frankfurt"
  }
  expect_failures = [var.region]
}

run "a_zone_twice" {
  command = plan
  variables {
    zones = ["eu-central-1a", "eu-central-1a"]
  }
  expect_failures = [var.zones]
}

run "no_zone" {
  command = plan
  variables {
    zones = []
  }
  expect_failures = [var.zones]
}

run "a_network_that_is_too_small" {
  command = plan
  variables {
    cidr = "10.20.0.0/28"
  }
  expect_failures = [var.cidr]
}

run "what_is_no_network" {
  command = plan
  variables {
    cidr = "10.20.0.0"
  }
  expect_failures = [var.cidr]
}

run "a_bucket_by_its_name" {
  command = plan
  variables {
    archive_arn = "example-firn-archive"
  }
  expect_failures = [var.archive_arn]
}

run "a_network_of_version_6" {
  command = plan
  variables {
    cidr = "fd00::/16"
  }
  expect_failures = [var.cidr]
}

run "a_secret_of_another_region" {
  command = plan
  variables {
    secret_arns = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:firn/node-a1b2c3"]
  }
  expect_failures = [var.secret_arns]
}
