# What is refused, and which variable is named for it.

variables {
  bucket = "example-firn-archive"
}

run "a_bucket_in_capitals" {
  command = plan
  variables {
    bucket = "Archive"
  }
  expect_failures = [var.bucket]
}

run "a_bucket_with_a_dot" {
  command = plan
  variables {
    bucket = "firn.archive"
  }
  expect_failures = [var.bucket]
}

run "another_partition" {
  command = plan
  variables {
    partition = "azure"
  }
  expect_failures = [var.partition]
}

run "uploads_that_are_aborted_at_once" {
  command = plan
  variables {
    abort_uploads_days = 0
  }
  expect_failures = [var.abort_uploads_days]
}

run "half_a_day" {
  command = plan
  variables {
    noncurrent_days = 0.5
  }
  expect_failures = [var.noncurrent_days]
}
