# A node, a transaction that was aborted, and one that is open under the id of the page.
s3
node
firn topic create flights --partitions 4
python "$SCENES/transactions.py" &
until_true grep -q open transactions.log
