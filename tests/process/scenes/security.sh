# The configuration of one node that the page's blocks make up, the files that they name, and somebody who types passwords.
page_properties() {
  python - "$1" << 'END'
import sys
from tests.support.doc_blocks import blocks
print(next(one.text for one in blocks("docs/security.md") if one.language == "properties" and sys.argv[1] in one.text))
END
}
export PYTHONPATH=$REPOSITORY
{
  page_properties user_alice
  page_properties super.users
  echo 'delegation.token.secret.key=a-secret-of-a-token'
  echo 'sasl.mechanism.inter.broker.protocol=PLAIN'
} > server.properties
printf 'password-of-admin' > /etc/firn/admin.password
printf 'password-of-broker' > /etc/firn/broker.password
page_properties sasl.username=admin | sed 's/…/password-of-admin/' > client.properties
cp client.properties admin.properties
export FIRN_BOOTSTRAP=node-1:9092 FIRN_COMMAND_CONFIG=client.properties
exec < <(yes 'password-of-alice')
unset PYTHONPATH
