// Package discover keeps the endpoints of a router those that a source lists: a list
// that the program sets ([List]), a file ([File]), or DNS ([DNS], [SRV]).
//
//	watcher, err := discover.New(discover.Config{
//		Router: router, Source: &discover.DNS{Name: "models.internal", Port: 8000},
//		OnError: func(err error) { log.Print(err) },
//	})
//	…
//	go watcher.Run(ctx)
//
// A source is asked for its whole list again and again, and [endpick.Router.SetEndpoints]
// gets it when it has changed: who is in both lists, by ID, keeps what is in flight and
// what is known of its cache, and who has gone ends what it has begun.
//
// What can't be right changes nothing and is told (Config.OnError): a source that
// fails, a list with a mistake or with an endpoint twice, and a list that is empty. A
// list is empty far more often because something is broken than because there is
// nothing left to route to, and servers that are really gone are found to be so by
// their health. A host that means it sets Config.AllowEmpty. Until the first good list
// the router has the endpoints that it was made with.
//
// Package scrape (a module of its own) can find out what servers hold and serve: give
// its Survey.Fill to Config.Fill.
package discover
