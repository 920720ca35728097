// Package discover keeps the endpoints of a router equal to what a source lists: a file
// ([File]), names ([DNS]), or a [Source] of your own. A program that hears of changes
// needs no watcher: it calls [endpick.Router.SetEndpoints].
//
//	watcher, err := discover.New(discover.Config{
//		Router: router, Source: &discover.DNS{Name: "models.internal", Port: 8000},
//		OnError: func(err error) { log.Print(err) },
//	})
//	…
//	go watcher.Run(ctx)
//
// The source is polled for its whole list. When that has changed, it is passed to
// [endpick.Router.SetEndpoints]: endpoints in both lists, by ID, keep their requests in
// flight and what is known of their caches; requests on removed ones run to their end.
//
// A list that can't be right changes nothing and is reported to Config.OnError: if the
// source fails, if the list has a mistake or a duplicate, and if it is empty. An empty
// list usually means that something is broken, and servers that are really gone are found
// by their health; Config.AllowEmpty accepts it. Until the first good list, the router has
// the endpoints it was made with.
//
// Package scrape (a module of its own) can find out what servers hold and serve: give
// its Inspector.Fill to Config.Fill.
package discover
