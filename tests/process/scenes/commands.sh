# The file that a profile is made of.
printf 'security.protocol=PLAINTEXT\n' > admin.properties
