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
  page_properties user_alice | sed -e 's|^listeners=.*|&,CONTROLLER://127.0.0.1:9093|' \
    -e 's|PlainLoginModule required|& username="bob" password="his password"|' \
    -e 's|^listener.security.protocol.map=.*|&,CONTROLLER:PLAINTEXT|'
  printf 'controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:9093\n'
  page_properties super.users
  echo 'delegation.token.secret.key=a-secret-of-a-token'
  printf 'inter.broker.listener.name=CLIENTS\nsasl.mechanism.inter.broker.protocol=PLAIN\n'
} > server.properties
printf 'password-of-admin' > /etc/firn/admin.password
printf 'password-of-broker' > /etc/firn/broker.password
page_properties sasl.username=admin | sed 's/…/password-of-admin/' > client.properties
cp client.properties admin.properties
export FIRN_BOOTSTRAP=node-1:9092 FIRN_COMMAND_CONFIG=client.properties
exec < <(yes 'password-of-alice')
unset PYTHONPATH
cat > alice.properties << 'END'
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="her password";
END
