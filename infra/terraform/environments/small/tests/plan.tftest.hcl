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
