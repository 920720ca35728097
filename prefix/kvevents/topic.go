package kvevents

import (
	"net"
	"strconv"
	"strings"
)

// RankAddress is the address at which a data-parallel rank publishes, given that of the
// engine: its port plus rank. Scheme and host stay as they are.
func RankAddress(address string, rank int) (string, bool) {
	at := strings.LastIndexByte(address, ':')
	if at < 0 || rank < 0 {
		return "", false
	}
	port, err := strconv.ParseUint(address[at+1:], 10, 16)
	if err != nil || rank > 1<<16 || port+uint64(rank) >= 1<<16 {
		return "", false
	}
	return address[:at+1] + strconv.FormatUint(port+uint64(rank), 10), true
}

// dialAddress strips the scheme that engines' flags have.
func dialAddress(address string) (string, error) {
	address = strings.TrimPrefix(address, "tcp://")
	_, _, err := net.SplitHostPort(address)
	return address, err
}
