# A node, and the file with the token that the console is to ask for.
s3
node
echo 0123456789abcdef > /etc/firn/console-token
chmod 600 /etc/firn/console-token
