// Caddy is Caddy with endpick in it, with all of Caddy's commands; to be copied.
//
//	GOWORK=off go run . run --config Caddyfile
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/endpick/endpick/transport/caddy"
)

func main() { caddycmd.Main() }
