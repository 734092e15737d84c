; every loop is explicit
target triple = "x86_64-unknown-linux-gnu"

define void @scale(ptr noalias readonly captures(none) align 64 %a, ptr noalias captures(none) align 64 %b, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_vector_body.5, label %i_vector_done.6
i_vector_body.5:
  %i_vector.8 = phi i64 [ 0, %first.1 ], [ %i_vector_next.14, %i_vector_body.5 ]
  %.9 = mul nsw i64 %i_vector.8, 16
  %.10 = getelementptr float, ptr %a, i64 %.9
  %.11 = load <16 x float>, ptr %.10, align 64
  %.12 = fmul contract <16 x float> %.11, splat (float 0x4000000000000000)
  %.13 = getelementptr float, ptr %b, i64 %.9
  store <16 x float> %.12, ptr %.13, align 64
  %i_vector_next.14 = add nuw nsw i64 %i_vector.8, 1
  %.15 = icmp slt i64 %i_vector_next.14, %.4
  br i1 %.15, label %i_vector_body.5, label %i_vector_done.6, !llvm.loop !0
i_vector_done.6:
  %.16 = mul nsw i64 %.4, -16
  %.17 = add nsw i64 %n, %.16
  %.18 = call i64 @llvm.smax.i64(i64 %.17, i64 0)
  %.19 = call i64 @llvm.smin.i64(i64 %.18, i64 16)
  %.20 = trunc i64 %.19 to i32
  %.21 = insertelement <16 x i32> poison, i32 %.20, i64 0
  %.22 = shufflevector <16 x i32> %.21, <16 x i32> poison, <16 x i32> zeroinitializer
  %.23 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.22
  %.24 = icmp slt i64 0, %.19
  br i1 %.24, label %then.25, label %join.26
then.25:
  %.27 = mul nsw i64 %.4, 16
  %.28 = getelementptr float, ptr %a, i64 %.27
  %.29 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 64 %.28, <16 x i1> %.23, <16 x float> zeroinitializer)
  %.30 = fmul contract <16 x float> %.29, splat (float 0x4000000000000000)
  %.31 = getelementptr float, ptr %b, i64 %.27
  call void @llvm.masked.store.v16f32.p0(<16 x float> %.30, ptr align 64 %.31, <16 x i1> %.23)
  br label %join.26
join.26:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
