// Package caddy is endpick inside Caddy: a transport of Caddy's reverse_proxy that
// picks the inference server of each request.
//
//	:8080 {
//		reverse_proxy {
//			dynamic endpick
//			transport endpick {
//				policy   predicted-latency
//				endpoint http://10.0.0.1:8000
//				endpoint http://10.0.0.2:8000
//				scrape   500ms
//			}
//		}
//	}
//
// Importing it registers two modules, http.reverse_proxy.transport.endpick and
// http.reverse_proxy.upstreams.endpick. The second is an upstream source, because
// Caddy needs an upstream before it calls a transport; it names no real server.
//
// What the router knows (prefix index, in-flight counts, latency models, health)
// belongs to a named pool and lives as long as any running configuration uses that
// pool: a reload keeps it. docs/caddy.md has every setting, the placeholders, and
// what goes wrong.
package caddy
