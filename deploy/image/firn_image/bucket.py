"""Makes a bucket on an S3 that a compose file brings: `python -m firn_image.bucket NAME`.

Not `firn bucket create`: that one sets encryption, versions and lifecycle rules, which small S3 servers lack.
"""

from __future__ import annotations

import sys


def main() -> int:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    (name,) = sys.argv[1:]
    s3 = boto3.client("s3")
    try:
        if name in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
            print(f"bucket {name} is there")
            return 0
        s3.create_bucket(Bucket=name)
    except (BotoCoreError, ClientError) as error:
        print(f"bucket {name}: {error}", file=sys.stderr)
        return 1
    print(f"bucket {name} made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
