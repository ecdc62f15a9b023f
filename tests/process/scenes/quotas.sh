# A node, which quotas are set at.
s3
node
