variables {
  region   = "eu-central-1"
  zones    = ["eu-central-1a"]
  bucket   = "example-firn-small"
  image_id = "ami-0123456789abcdef0"
  package = {
    url    = "s3://example-firn-small/packages/firn-0.1.0.tar"
    sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
}

run "everything" {
  command = plan

  assert {
    condition     = output.bootstrap_servers == "firn-1.firn-small.internal:9092"
    error_message = "Without a load balancer clients begin at the node."
  }
}

run "secured" {
  command = plan
  variables {
    secrets = {
      node        = "arn:aws:ssm:eu-central-1:123456789012:parameter/firn/node-a1b2c3"
      ca          = "arn:aws:ssm:eu-central-1:123456789012:parameter/firn/ca-a1b2c3"
      admin       = "arn:aws:ssm:eu-central-1:123456789012:parameter/firn/admin-a1b2c3"
      super_users = "arn:aws:ssm:eu-central-1:123456789012:parameter/firn/super-users-a1b2c3"
    }
  }

  assert {
    condition     = output.client_config == "/etc/firn/secrets/client.properties"
    error_message = "By a variable."
  }
  assert {
    condition = jsondecode([
      for file in yamldecode(nonsensitive(output.user_data)["1"]).write_files : file.content if file.path == "/etc/firn/machine.json"
    ][0]).security == { for name, arn in var.secrets : name => arn if arn != null }
    error_message = "The machine is told where secrets are."
  }
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
