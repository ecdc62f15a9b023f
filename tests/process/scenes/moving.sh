# Three nodes of Firn.
firn dev --nodes 3 --dir nodes --no-console
export FIRN_BOOTSTRAP=127.0.0.1:9092
