# What a machine may do: read and write the archive, list it, read packages, read its secrets. Nothing else.
# Machines of a cluster also note who has been formed, where nothing is noted yet. But for that and the packages it is what `firn bucket policy` prints; a test compares the two.

resource "aws_iam_role" "node" {
  name        = "${var.name}-node"
  description = "Machines of ${var.name}: its archive, and packages to install"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy" "archive" {
  name = "archive"
  role = aws_iam_role.node.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Objects"
        Effect = "Allow"
        Action = [
          "s3:AbortMultipartUpload",
          "s3:DeleteObject",
          "s3:GetObject",
          "s3:PutObject",
        ]
        Resource = ["${var.archive_arn}/${var.prefix}/*"]
      },
      {
        Sid       = "ListPrefix"
        Effect    = "Allow"
        Action    = ["s3:ListBucket"]
        Resource  = [var.archive_arn]
        Condition = { StringLike = { "s3:prefix" = ["${var.prefix}/*"] } }
      },
      {
        Sid      = "Packages"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["${var.archive_arn}/${var.packages_prefix}/*"]
      },
    ]
  })
}

# Which controllers have been formed is said once, and never taken back by a machine: S3 is only let make what is not there.
resource "aws_iam_role_policy" "formed" {
  count = var.formed_prefix == null ? 0 : 1

  name = "formed"
  role = aws_iam_role.node.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Formed"
        Effect    = "Allow"
        Action    = ["s3:PutObject"]
        Resource  = ["${var.archive_arn}/${var.formed_prefix}/*"]
        Condition = { Null = { "s3:if-none-match" = "false" } }
      },
      {
        Sid      = "WhoWasFormed"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["${var.archive_arn}/${var.formed_prefix}/*"]
      },
    ]
  })
}

resource "aws_iam_role_policy" "key" {
  count = var.kms ? 1 : 0

  name = "key"
  role = aws_iam_role.node.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "Key"
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource = [var.kms_key_arn]
    }]
  })
}

# The secrets by their ARNs alone: none may be listed, and none be written.
resource "aws_iam_role_policy" "secrets" {
  count = length(var.secret_arns) == 0 ? 0 : 1

  name = "secrets"
  role = aws_iam_role.node.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        for service, action in { secretsmanager = "secretsmanager:GetSecretValue", ssm = "ssm:GetParameter" } : {
          Sid                                   = service == "ssm" ? "Parameters" : "Secrets"
          Effect                                = "Allow"
          Action                                = [action]
          Resource                              = [for arn in var.secret_arns : arn if split(":", arn)[2] == service]
        } if anytrue([for arn in var.secret_arns : split(":", arn)[2] == service])
      ],
      [
        for key in var.secret_key_arns : {
          Sid       = "KeyOfSecrets${index(var.secret_key_arns, key)}"
          Effect    = "Allow"
          Action    = ["kms:Decrypt"]
          Resource  = [key]
          Condition = { StringEquals = { "kms:ViaService" = [for service in ["secretsmanager", "ssm"] : "${service}.${split(":", key)[3]}.amazonaws.com"] } }
        }
      ],
    )
  })
}

resource "aws_iam_instance_profile" "node" {
  name = "${var.name}-node"
  role = aws_iam_role.node.name
}
