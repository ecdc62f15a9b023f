# Three nodes that are one cluster, a topic with replicas on two of them, and a group that has read it and left.
firn dev --nodes 3 --dir nodes --no-console
export FIRN_BOOTSTRAP=127.0.0.1:9092
firn topic create flights --partitions 4 --replication-factor 2
for partition in 0 1 2 3; do seq 500 | firn produce flights --partition $partition; done
firn consume flights --group billing -n 2000 > /dev/null
ln -s nodes/node-1 firn-data
