# What is refused, and which variable is named for it.

variables {
  name        = "firn"
  archive_arn = "arn:aws:s3:::example-firn-archive"
}

run "a_name_with_a_slash" {
  command = plan
  variables {
    name = "a/b"
  }
  expect_failures = [var.name]
}

run "every_bucket" {
  command = plan
  variables {
    archive_arn = "arn:aws:s3:::*"
  }
  expect_failures = [var.archive_arn]
}

run "a_prefix_that_matches_others" {
  command = plan
  variables {
    prefix = "firn*"
  }
  expect_failures = [var.prefix]
}

run "a_prefix_with_a_slash_at_its_end" {
  command = plan
  variables {
    prefix = "firn/"
  }
  expect_failures = [var.prefix]
}

run "no_prefix_for_packages" {
  command = plan
  variables {
    packages_prefix = ""
  }
  expect_failures = [var.packages_prefix]
}

run "packages_where_machines_may_write" {
  command = plan
  variables {
    packages_prefix = "firn/packages"
  }
  expect_failures = [var.packages_prefix]
}

run "an_archive_among_the_packages" {
  command = plan
  variables {
    prefix = "packages/firn"
  }
  expect_failures = [var.packages_prefix]
}

run "who_was_formed_where_machines_may_delete" {
  command = plan
  variables {
    formed_prefix = "firn/formed"
  }
  expect_failures = [var.formed_prefix]
}

run "no_prefix_for_who_was_formed" {
  command = plan
  variables {
    formed_prefix = ""
  }
  expect_failures = [var.formed_prefix]
}

run "every_secret" {
  command = plan
  variables {
    secret_arns = ["arn:aws:secretsmanager:eu-central-1:123456789012:secret:*"]
  }
  expect_failures = [var.secret_arns]
}

run "every_key_of_secrets" {
  command = plan
  variables {
    secret_key_arns = ["arn:aws:kms:eu-central-1:123456789012:key/*"]
  }
  expect_failures = [var.secret_key_arns]
}
