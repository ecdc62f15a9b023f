variable "name" {
  description = "What machines, volumes and the private zone are named after."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "A name begins with a letter, has lower-case letters, digits and dashes, and 2 to 20 characters."
  }
}

variable "machines" {
  description = "Number of machines that hold partitions; machine 1 is in the first zone, 2 in the second, and so on around."
  type        = number

  validation {
    condition     = var.machines >= 1 && var.machines <= 99 && floor(var.machines) == var.machines
    error_message = "A whole number of 1 to 99."
  }
  validation {
    condition     = var.controllers > 0 ? var.machines >= 3 : var.machines * var.processes == 1
    error_message = "Three machines or more where there are controllers, as three replicas want three zones; without controllers one node."
  }
}

variable "controllers" {
  description = "Number of machines that are controllers and nothing else: 3, or 5 to lose two at once; 0 for one node that is all. It cannot be changed once the cluster has been formed."
  type        = number
  default     = 0

  validation {
    condition     = contains([0, 3, 5], var.controllers)
    error_message = "0, 3 or 5: an even number outlives no more losses than one less."
  }
  validation {
    condition     = var.controllers == 0 || length(distinct(var.zones)) >= 3
    error_message = "Controllers in three zones: in two of them the loss of one could be the loss of a majority."
  }
}

variable "cluster_id" {
  description = "The cluster's id, as `firn random-uuid` prints one; directory ids of its controllers are made from it. null without controllers."
  type        = string
  default     = null

  validation {
    condition     = var.controllers == 0 ? var.cluster_id == null : can(regex("^[A-Za-z0-9_][A-Za-z0-9_-]{20}[AQgw]$", var.cluster_id))
    error_message = "With controllers, and with them alone: 22 characters as `firn random-uuid` prints them."
  }
}

variable "formed_url" {
  description = "Where it is kept which controllers have been formed, so that none is twice: s3://bucket/prefix. null without controllers."
  type        = string
  default     = null

  validation {
    condition     = var.controllers == 0 ? var.formed_url == null : can(regex("^s3://[a-z0-9][a-z0-9-]{1,61}[a-z0-9](/[A-Za-z0-9_.-]+)+$", var.formed_url))
    error_message = "With controllers, and with them alone: a URL like s3://example-firn-archive/formed."
  }
}

variable "processes" {
  description = "Nodes on each machine: a node is one event loop, so one for each core. Node p of machine m has the id 1000 p + m (p from 0), so ids stay when either number grows."
  type        = number
  default     = 1

  validation {
    condition     = var.processes >= 1 && var.processes <= 64 && floor(var.processes) == var.processes
    error_message = "A whole number of 1 to 64."
  }
}

variable "zones" {
  description = "Availability zones in the order of machines."
  type        = list(string)

  validation {
    condition     = length(var.zones) >= 1 && alltrue([for zone in var.zones : contains(keys(var.subnets), zone)])
    error_message = "One zone at least, and a subnet for each."
  }
}

variable "vpc_id" {
  description = "The network."
  type        = string
}

variable "subnets" {
  description = "Zone to subnet."
  type        = map(string)
}

variable "client_cidrs" {
  description = "Addresses that clients come from."
  type        = list(string)

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && can(regex("^[0-9.]+/([89]|[12][0-9]|3[0-2])$", cidr))])
    error_message = "IPv4 networks of /8 to /32, and so not all of the Internet."
  }
}

variable "metrics_cidrs" {
  description = "Addresses that metrics are scraped from."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.metrics_cidrs : can(cidrhost(cidr, 0)) && can(regex("^[0-9.]+/([89]|[12][0-9]|3[0-2])$", cidr))])
    error_message = "IPv4 networks of /8 to /32, and so not all of the Internet: there is no login."
  }
}

variable "connect_security_group_id" {
  description = "Security group that SSH comes from."
  type        = string
}

variable "key_name" {
  description = "EC2 key pair for SSH; null for none."
  type        = string
  default     = null
}

variable "image_id" {
  description = "Machine image: Debian 12 or 13, or Ubuntu 24.04, for the processor of instance_type. docs/deploy.md says how to find one."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.image_id))
    error_message = "An image's id looks like ami-0123456789abcdef0."
  }
}

variable "root_device" {
  description = "The image's name of its root disk: /dev/xvda for Debian, /dev/sda1 for Ubuntu. Another name would make a second disk."
  type        = string
  default     = "/dev/xvda"

  validation {
    condition     = contains(["/dev/xvda", "/dev/sda1"], var.root_device)
    error_message = "/dev/xvda or /dev/sda1."
  }
}

variable "instance_type" {
  description = "Type of the machines; of the Nitro generations, for volumes that are found by their name."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.instance_type))
    error_message = "A type looks like m7i.large."
  }
}

variable "controller_instance_type" {
  description = "Type of the controllers' machines; of the Nitro generations."
  type        = string
  default     = "t3.small"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.controller_instance_type))
    error_message = "A type looks like t3.small."
  }
}

variable "instance_profile" {
  description = "Instance profile that lets machines use the archive."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_+=,.@-]{1,128}$", var.instance_profile))
    error_message = "The name of an instance profile, not its ARN."
  }
}

variable "volume" {
  description = "The data volume of each machine: gp3, in GiB, operations and MiB per second. snapshot: whether one is made when terraform deletes the volume."
  type = object({
    size       = number
    iops       = optional(number, 3000)
    throughput = optional(number, 125)
    kms_key_id = optional(string)
    snapshot   = optional(bool, true)
  })

  validation {
    condition     = var.volume.size >= 8 && var.volume.size <= 65536 && floor(var.volume.size) == var.volume.size
    error_message = "A volume has 8 to 65,536 whole GiB."
  }
  validation {
    condition     = var.volume.iops >= 3000 && var.volume.iops <= min(80000, max(3000, 500 * var.volume.size))
    error_message = "gp3 does 3,000 to 80,000 operations per second, and 500 for each GiB at most."
  }
  validation {
    condition     = var.volume.throughput >= 125 && var.volume.throughput <= 2000 && var.volume.throughput <= var.volume.iops / 4
    error_message = "gp3 does 125 to 2,000 MiB per second, and a quarter MiB for each operation at most."
  }
  validation {
    condition     = var.volume.kms_key_id == null || can(regex("^arn:aws[a-z-]*:kms:", var.volume.kms_key_id))
    error_message = "A key by its ARN."
  }
}

variable "controller_volume" {
  description = "The data volume of each controller's machine, for the metadata alone; otherwise as volume."
  type = object({
    size       = number
    iops       = optional(number, 3000)
    throughput = optional(number, 125)
    kms_key_id = optional(string)
    snapshot   = optional(bool, true)
  })
  default = { size = 16 }

  validation {
    condition     = var.controller_volume.size >= 8 && var.controller_volume.size <= 65536 && floor(var.controller_volume.size) == var.controller_volume.size
    error_message = "A volume has 8 to 65,536 whole GiB."
  }
  validation {
    condition     = var.controller_volume.iops >= 3000 && var.controller_volume.iops <= min(80000, max(3000, 500 * var.controller_volume.size))
    error_message = "gp3 does 3,000 to 80,000 operations per second, and 500 for each GiB at most."
  }
  validation {
    condition     = var.controller_volume.throughput >= 125 && var.controller_volume.throughput <= 2000 && var.controller_volume.throughput <= var.controller_volume.iops / 4
    error_message = "gp3 does 125 to 2,000 MiB per second, and a quarter MiB for each operation at most."
  }
  validation {
    condition     = var.controller_volume.kms_key_id == null || can(regex("^arn:aws[a-z-]*:kms:", var.controller_volume.kms_key_id))
    error_message = "A key by its ARN."
  }
}

variable "package" {
  description = "What machines install: a tar of wheels (`make package`), as s3://bucket/key or https://…, and its SHA-256."
  type = object({
    url    = string
    sha256 = string
  })

  validation {
    condition     = can(regex("^(s3://[a-z0-9.-]+|https://[^/@[:space:]]+)/[[:graph:]]+$", var.package.url))
    error_message = "s3://bucket/key or https://host/path, without a password in it."
  }
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "64 hexadecimal digits, as sha256sum prints them."
  }
}

variable "region" {
  description = "Region of the bucket."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region looks like eu-central-1."
  }
}

variable "remote_url" {
  description = "Where the archive lies: s3://bucket/prefix."
  type        = string

  validation {
    condition     = can(regex("^s3://[a-z0-9][a-z0-9-]{1,61}[a-z0-9](/[A-Za-z0-9_.-]+)*$", var.remote_url))
    error_message = "A URL looks like s3://example-firn-archive/firn."
  }
}

variable "properties" {
  description = "More of server.properties, stronger than what is set here."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.properties) : can(regex("^[A-Za-z0-9._-]+$", key))])
    error_message = "Keys have letters, digits, dots, dashes and underscores."
  }
  validation {
    condition     = length(setintersection(keys(var.properties), ["node.id", "listeners", "advertised.listeners", "log.dirs", "log.dir", "firn.http.listener", "process.roles", "controller.listener.names", "controller.quorum.bootstrap.servers", "controller.quorum.voters", "metadata.log.dir", "firn.processes", "firn.processes.id.step", "firn.processes.port.step"])) == 0
    error_message = "node.id, listeners, log.dirs, firn.http.listener and who votes are made of what else is said here."
  }
  validation {
    condition     = var.secrets == null || length(setintersection(keys(var.properties), ["listener.security.protocol.map", "inter.broker.listener.name", "security.inter.broker.protocol", "authorizer.class.name", "super.users", "config.providers", "sasl.enabled.mechanisms", "ssl.keystore.type", "ssl.keystore.location", "ssl.truststore.type", "ssl.truststore.location", "firn.http.ssl.keystore.location", "firn.http.token.file"])) == 0
    error_message = "With secrets, listeners, stores and super users are made of them."
  }
  validation {
    condition     = !anytrue([for value in values(var.properties) : can(regex("[[:cntrl:]]", value))])
    error_message = "Values have no line breaks and no other control characters."
  }
}

variable "secrets" {
  description = "ARNs of secrets in Secrets Manager or of parameters in SSM, never their values: each node's key with its chain, the certificates that are trusted, the password of the user admin, the principals that may do everything; and, if metrics are to be told for it alone, a token. null: no login and no encryption."
  type = object({
    node        = string
    ca          = string
    admin       = string
    super_users = string
    metrics     = optional(string)
  })
  default = null

  validation {
    condition = var.secrets == null ? true : alltrue([for arn in values(var.secrets) : arn == null ||
      can(regex("^arn:aws[a-z-]*:(secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9_/+=.@-]+|ssm:[a-z0-9-]+:[0-9]{12}:parameter/[A-Za-z0-9_./-]+)$", arn))
    ])
    error_message = "Whole ARNs, as arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn/node-a1b2c3, and not what is in them."
  }
}

variable "stop_timeout_s" {
  description = "How long a node may take to stop cleanly before it is killed."
  type        = number
  default     = 180

  validation {
    condition     = var.stop_timeout_s >= 10 && var.stop_timeout_s <= 3600 && floor(var.stop_timeout_s) == var.stop_timeout_s
    error_message = "A whole number of 10 to 3,600 seconds."
  }
}
