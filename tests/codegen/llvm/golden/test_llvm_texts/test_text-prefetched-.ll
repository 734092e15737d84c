; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.18, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = add nsw i64 %.9, 64
  %.11 = getelementptr inbounds float, ptr %A, i64 %.10
  call void @llvm.prefetch.p0(ptr %.11, i32 0, i32 2, i32 1)
  %.12 = getelementptr float, ptr %A, i64 %.9
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = getelementptr float, ptr %.12, i64 8
  %.15 = load <8 x float>, ptr %.14, align 4
  %.16 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.13, ptr %.16, align 4
  %.17 = getelementptr float, ptr %.16, i64 8
  store <8 x float> %.15, ptr %.17, align 4
  %i_next.18 = add nuw nsw i64 %i.8, 1
  %.19 = icmp slt i64 %i_next.18, %.4
  br i1 %.19, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare void @llvm.prefetch.p0(ptr, i32, i32, i32)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.15, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = add nsw i64 %.9, 64
  %.11 = getelementptr inbounds float, ptr %A, i64 %.10
  call void @llvm.prefetch.p0(ptr %.11, i32 0, i32 2, i32 1)
  %.12 = getelementptr float, ptr %A, i64 %.9
  %.13 = load <16 x float>, ptr %.12, align 4
  %.14 = getelementptr float, ptr %C, i64 %.9
  store <16 x float> %.13, ptr %.14, align 4
  %i_next.15 = add nuw nsw i64 %i.8, 1
  %.16 = icmp slt i64 %i_next.15, %.4
  br i1 %.16, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare void @llvm.prefetch.p0(ptr, i32, i32, i32)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
