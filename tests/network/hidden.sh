#!/bin/sh
# hidden.sh MOTLEY FOLDER: two sites that reach one machine between them and not each other, a coordinator with a relay
# on that machine, and an all_reduce of one member per site. FOLDER holds a group's folder `lab` with members anna, ben.
# Runs in mount, network and process namespaces of its own.
set -eu
motley=$1
cd "$2"
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
for site in 1 2; do
  ip netns add "site$site"
  ip link add "site$site" type veth peer name wire netns "site$site"
  ip addr add "10.$site.0.1/24" dev "site$site"
  ip link set "site$site" up
  ip -n "site$site" addr add "10.$site.0.2/24" dev wire
  ip -n "site$site" link set wire up
  ip -n "site$site" link set lo up
  ip -n "site$site" route add default via "10.$site.0.1"
done

"$motley" group serve --folder lab --listen 0.0.0.0:4700 --relay 0.0.0.0:4701 >address 2>relay.log &
while ! grep -q '^relay:' address; do sleep 0.05; done

# A machine that can be reached would say that no process listens.
direct=0
ip netns exec site1 timeout 1 bash -c ': </dev/tcp/10.2.0.2/4711' 2>direct.log || direct=$?

member() {
  ip netns exec "site$(($1 + 1))" "$motley" bench comm --transport tcp --folder "lab/members/$2" --rank "$1" \
    --members anna=relay:10.1.0.1:4701/anna,ben=relay:10.1.0.1:4701/ben \
    --from "1 MiB" --to "1 MiB" --seconds 0.2 --json >"$2.json" 2>"$2.log"
}
member 0 anna &
anna=$!
relayed=0
member 1 ben || relayed=$?
wait $anna || relayed=$?
echo "direct $direct relayed $relayed"
